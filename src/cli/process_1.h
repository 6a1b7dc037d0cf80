// A container's only process.
#pragma once

namespace larder {

// The kernel drops signals for which process 1 has no handler: a container would not stop while its model is loaded. From
// here on SIGINT and SIGTERM end it at once; a server puts its own handlers in their place.
void let_process_1_end();

}  // namespace larder
