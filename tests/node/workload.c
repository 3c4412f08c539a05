/* The only program of the image. Without words it sleeps, as a pod's sandbox does. `show` tells what its container was
 * given and sleeps; `show STATUS` tells and ends. `stay` tells and sleeps until it is killed. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

extern char **environ;

/* Process 1 of a container ignores signals that it does not handle. */
static void end(int number) {
    (void)number;
    _exit(0);
}

static void show_devices(void) {
    DIR *folder = opendir("/dev");
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[300];
        struct stat found;
        if (strncmp(entry->d_name, "nvidia", 6) != 0) continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        if (stat(path, &found) == 0) printf("device %s=%u:%u\n", path, major(found.st_rdev), minor(found.st_rdev));
    }
    closedir(folder);
}

/* Fields 4 and 5 of a line are what of the file system is mounted, and where. */
static void show_mounts(void) {
    FILE *table = fopen("/proc/self/mountinfo", "r");
    char line[4096], root[1024], place[1024], options[256];
    while (table && fgets(line, sizeof line, table))
        if (sscanf(line, "%*s %*s %*s %1023s %1023s %255s", root, place, options) == 3)
            printf("mount %s=%s %s\n", place, root, options);
}

int main(int count, char **words) {
    if (count < 2 || strcmp(words[1], "stay") != 0) signal(SIGTERM, end);
    if (count > 1) {
        for (char **entry = environ; *entry; entry++) printf("env %s\n", *entry);
        show_devices();
        show_mounts();
        printf("end\n");
        fflush(stdout);
    }
    if (count > 2) return atoi(words[2]);
    for (;;) pause();
}
