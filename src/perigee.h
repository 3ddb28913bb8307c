// All of Perigee for an application that embeds it: #include <perigee/perigee.h>.
#pragma once

#include "base/error.h"
#include "base/log.h"
#include "capture/capture.h"
#include "capture/composites/attention.h"
#include "job/job.h"
#include "train/trainer.h"
