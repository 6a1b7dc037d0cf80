// Arguments that no command takes.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace larder {

// Of those that the last parse left over, which are some: the first option, or else the first word, with what it may
// have meant here: a name that is near, what another server's option of that name does, a model's file.
std::string describe_extras(const CLI::App& app);

}  // namespace larder
