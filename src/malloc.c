/* What the program tells its C library before it begins. */
#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>

/* One heap for all threads. glibc gives each thread a heap of its own, and keeps there what the thread has freed: no
   other thread can use it, and nobody's --max-memory counts it. */
__attribute__((constructor)) static void one_heap(void) { mallopt(M_ARENA_MAX, 1); }
#endif
