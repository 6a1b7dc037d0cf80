#include "grammar/json_formats.h"

#include <algorithm>

namespace larder {
namespace {

#define LARDER_DATE                            \
  "[12][0-9]{3}-("                             \
  "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|" \
  "(0[469]|11)-(0[1-9]|[12][0-9]|30)|"         \
  "02-(0[1-9]|1[0-9]|2[0-8]))"
#define LARDER_HOURS "([01][0-9]|2[0-3]):[0-5][0-9]"
#define LARDER_TIME LARDER_HOURS ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" LARDER_HOURS ")"
#define LARDER_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,18}[A-Za-z0-9])?"
#define LARDER_HOST LARDER_LABEL "(\\." LARDER_LABEL "){0,3}"
// What URLs and mail call a host: no "--" at the third and fourth place, where names in other letters have it, and what
// comes last begins with a letter, as else it were a number.
#define LARDER_NAME_END "([A-Za-z0-9-]{0,2}[A-Za-z0-9]|[A-Za-z0-9-]([A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,15}[A-Za-z0-9])?"
#define LARDER_NAME "[A-Za-z0-9]" LARDER_NAME_END
#define LARDER_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LARDER_IPV4 "(" LARDER_BYTE "\\.){3}" LARDER_BYTE
#define LARDER_PART "[A-Za-z0-9_+-]{1,24}"
#define LARDER_UUID(version) \
  "[0-9a-f]{8}-[0-9a-f]{4}-" version "[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

constexpr JsonFormat kFormats[] = {
    {"date", LARDER_DATE, 10, 10},
    {"time", LARDER_TIME, 9, 21},
    {"date-time", LARDER_DATE "T" LARDER_TIME, 20, 32},
    {"duration",
     "P([0-9]{1,4}W|[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M)?([0-9]{1,4}S)?|[0-9]{1,4}M([0-9]{1,4}S)?|"
     "[0-9]{1,4}S))",
     3, 22},
    {"email", LARDER_PART "(\\." LARDER_PART ")?@" LARDER_NAME "(\\." LARDER_NAME "){0,1}\\.[A-Za-z]{2,6}", 6, 98},
    {"uuid", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", 36, 36},
    {"uuid1", LARDER_UUID("1"), 36, 36},
    {"uuid3", LARDER_UUID("3"), 36, 36},
    {"uuid4", LARDER_UUID("4"), 36, 36},
    {"uuid5", LARDER_UUID("5"), 36, 36},
    {"hostname", LARDER_HOST, 1, 83},
    {"ipv4", LARDER_IPV4, 7, 15},
    {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}", 15, 39},
    {"uri",
     "https?://((" LARDER_NAME "\\.){0,3}[A-Za-z]" LARDER_NAME_END "|" LARDER_IPV4 ")"
     "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,300})?"
     "(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,200})?",
     8, 598},
};

#undef LARDER_DATE
#undef LARDER_HOURS
#undef LARDER_TIME
#undef LARDER_LABEL
#undef LARDER_HOST
#undef LARDER_NAME_END
#undef LARDER_NAME
#undef LARDER_BYTE
#undef LARDER_IPV4
#undef LARDER_PART
#undef LARDER_UUID

}  // namespace

const JsonFormat* find_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &JsonFormat::name);
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace larder
