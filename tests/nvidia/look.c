/* What a container's process can open of NVIDIA's GPUs, as one line of JSON.
 *
 * A device file has no driver behind it: where the control group lets a process open it, ENXIO is the answer. It makes
 * each file itself, so that only the control group decides. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { GPU_MAJOR = 195, MOST_GPUS = 16 };

static int opens(unsigned minor) {
    char path[32];
    snprintf(path, sizeof path, "/gpu%u", minor);
    if (mknod(path, S_IFCHR | 0666, makedev(GPU_MAJOR, minor)) && errno != EEXIST) return 0;
    int file = open(path, O_RDONLY), problem = errno;
    if (file >= 0) close(file);
    return file >= 0 || problem == ENXIO;
}

static const char *list(const char *folder, const char *beginning, const char *before) {
    DIR *found = opendir(folder);
    for (struct dirent *each; found && (each = readdir(found));)
        if (!strncmp(each->d_name, beginning, strlen(beginning)) && each->d_type != DT_DIR) {
            printf("%s\"%s\"", before, each->d_name);
            before = ", ";
        }
    if (found) closedir(found);
    return before;
}

int main(int count, char **libraries) {
    const char *before = "";
    printf("{\"opened\": [");
    for (unsigned minor = 0; minor < MOST_GPUS; minor++)
        if (opens(minor)) printf("%s%u", before, minor), before = ", ";
    printf("], \"files\": [");
    list("/dev/nvidia-caps", "nvidia", list("/dev", "nvidia", ""));
    int found = 0;
    for (int k = 1; k < count; k++) found |= !access(libraries[k], R_OK);
    printf("], \"has_cuda\": %s}\n", found ? "true" : "false");
}
