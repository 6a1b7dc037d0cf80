// Arguments that no command takes.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace larder {

// Of those that the last parse left over, which are some: the first option, or else the first word, with what it may
// have meant.
std::string describe_extras(const CLI::App& app);

}  // namespace larder
