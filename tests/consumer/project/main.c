/* The smallest user: checks that the installed header and library have the same version. */
#include <octile/layers.h>
#include <octile/octile.h>
#include <octile/tuning.h>
#include <stdio.h>

int main(void) {
  int major = -1, minor = -1, patch = -1;
  octile_version(&major, &minor, &patch);
  printf("octile %d.%d.%d\n", major, minor, patch);
  return major == OCTILE_VERSION_MAJOR && minor == OCTILE_VERSION_MINOR &&
                 patch == OCTILE_VERSION_PATCH
             ? 0
             : 1;
}
