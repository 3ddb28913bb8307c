// Archives of torch.export as files: the zip around the parts that the target `exported` writes.
#include "capture/exported/archive.h"
#include "capture/exported/reader.h"
#include "tests/fuzz/target.h"

using namespace perigee;

// LibTorch's reader keeps what its constructor allocated where that throws.
extern "C" const char* __lsan_default_suppressions() { return "leak:mz_zip_reader_init\n"; }

PERIGEE_FUZZ_TARGET(archive) {
  exported::read_program(exported::read_archive(fuzz::scratch_file("m.pt2", input)));
}
