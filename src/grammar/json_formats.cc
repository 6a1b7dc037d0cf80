#include "grammar/json_formats.h"

#include <utility>

namespace larder {
namespace {

#define LARDER_DATE                            \
  "[12][0-9]{3}-("                             \
  "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|" \
  "(0[469]|11)-(0[1-9]|[12][0-9]|30)|"         \
  "02-(0[1-9]|1[0-9]|2[0-8]))"
#define LARDER_HOURS "([01][0-9]|2[0-3]):[0-5][0-9]"
#define LARDER_TIME LARDER_HOURS ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" LARDER_HOURS ")"
#define LARDER_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", LARDER_DATE},
    {"time", LARDER_TIME},
    {"date-time", LARDER_DATE "T" LARDER_TIME},
    {"duration",
     "P([0-9]{1,4}W|[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M)?([0-9]{1,4}S)?|[0-9]{1,4}M([0-9]{1,4}S)?|"
     "[0-9]{1,4}S))"},
    {"email",
     "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30})?@" LARDER_LABEL "(\\." LARDER_LABEL "){0,2}\\.[A-Za-z]{2,12}"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
    {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,20}://" LARDER_LABEL "(\\." LARDER_LABEL
            "){0,5}(:[0-9]{1,4})?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"
            "(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"},
};

#undef LARDER_DATE
#undef LARDER_HOURS
#undef LARDER_TIME
#undef LARDER_LABEL

}  // namespace

std::string_view expression_of_format(std::string_view format) {
  for (const auto& [name, expression] : kFormats) {
    if (name == format) return expression;
  }
  return {};
}

}  // namespace larder
