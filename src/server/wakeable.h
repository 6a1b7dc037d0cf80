// Who is told that there is something to do.
#pragma once

namespace larder {

class Wakeable {
 public:
  virtual ~Wakeable() = default;
  // Thread: any.
  virtual void wake() = 0;
};

}  // namespace larder
