// The list of all optimizers. A new one is a header beside this one and a row here.
#pragma once

#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamax.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/nadam.h"
#include "optim/radam.h"
#include "optim/rmsprop.h"
#include "optim/sgd.h"

// Calls X with the type of each optimizer whose kUpdate is elementwise.
#define PERIGEE_ELEMENTWISE_OPTIMIZERS(X) \
  X(Sgd)                                  \
  X(Adam)                                 \
  X(AdamW)                                \
  X(Lion)                                 \
  X(RmsProp)                              \
  X(Adagrad)                              \
  X(Adamax)                               \
  X(NAdam)                                \
  X(RAdam)

// Calls X with the type of each optimizer, in the order of the reference page.
#define PERIGEE_OPTIMIZERS(X)       \
  PERIGEE_ELEMENTWISE_OPTIMIZERS(X) \
  X(Adafactor)                      \
  X(Muon)
