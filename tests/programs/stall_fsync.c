/* Preloaded into a gateway: while the file named by STALL_FILE exists, every sync to disk waits.
   The first one that waits creates the file with the suffix .reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void stall(void) {
    const char *path = getenv("STALL_FILE");
    char reached[4096];
    if (path == NULL || access(path, F_OK) != 0) return;
    snprintf(reached, sizeof reached, "%s.reached", path);
    close(open(reached, O_CREAT | O_WRONLY, 0600));
    while (access(path, F_OK) == 0) usleep(5000);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    stall();
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    stall();
    return real(fd);
}
