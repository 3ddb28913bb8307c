// The thread-local state in which a session records.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "capture/record/session.h"

namespace perigee::tracing {

// Every op goes through the mode (mode.cc) and, on the capture device, through LibTorch's
// functionalisation, so that no op that is recorded writes.
class Session::Active {
 public:
  explicit Active(Session& session);
  ~Active();
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  Session* outer_;
  c10::impl::IncludeDispatchKeyGuard keys_;
  at::functionalization::impl::FunctionalizationReapplyViewsGuard views_;
  bool threading_;
};

}  // namespace perigee::tracing
