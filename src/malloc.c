/* What the program tells its C library before it begins. */
#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>

/* Memory that the server has freed must not stay with the process, as nobody's --max-memory counts it.
   - One heap for all threads: glibc gives each thread a heap of its own, and no thread can use what another has freed.
   - Fixed thresholds: else the first large value that is freed raises them, up to 32 MiB, and what is freed below them
     is kept. A value above the threshold gets pages of its own: more work for it, and nothing is left of it. */
__attribute__((constructor)) static void return_what_is_freed(void) {
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 512 * 1024);
    mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
}
#endif
