/*
 * Reports that the system cannot read a page of a mapped file, because the file was truncated while
 * its weights were in use, or because its device fails. Any kernel may read such a page, on any
 * thread. A program can ask for one line and an exit code, instead of being terminated by SIGBUS.
 */
#define _POSIX_C_SOURCE 200809L
#include "kernels.h"

#ifdef _WIN32
void exit_on_bus_error(void) {}
#else
#include <signal.h>
#include <stdatomic.h>
#include <termios.h>
#include <unistd.h>

enum { BAD_MODEL = 3 }; /* the value of BAD_MODEL in src/cli/application.py */

/* The initial state of the terminal on standard input, because a chat disables its echo. */
static struct termios terminal;
static int is_terminal = 0;

static void restore_terminal(void)
{
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTTOU); /* otherwise a background process would be stopped */
    if (is_terminal && pthread_sigmask(SIG_BLOCK, &stops, NULL) == 0)
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
}

static void report_and_exit(int number, siginfo_t *info, void *context)
{
    static const char line[] =
        "\nerror: a model file: expected all bytes that were mapped, got fewer (truncated while in "
        "use, or its device fails)\n";
    static atomic_flag is_reported = ATOMIC_FLAG_INIT;
    (void)context;
    if (info->si_code != BUS_ADRERR) { /* another fault: use the default */
        struct sigaction action = {.sa_handler = SIG_DFL};
        sigaction(number, &action, NULL);
        raise(number);
        return;
    }
    while (atomic_flag_test_and_set(&is_reported)) /* several threads may read such a page */
        pause();
    ptrdiff_t skipped = isatty(STDERR_FILENO) ? 0 : 1; /* a line may be unfinished */
    (void)!write(STDERR_FILENO, line + skipped, sizeof line - 1 - (size_t)skipped);
    restore_terminal();
    _exit(BAD_MODEL);
}

void exit_on_bus_error(void)
{
    struct sigaction action = {.sa_sigaction = report_and_exit, .sa_flags = SA_SIGINFO};
    is_terminal = tcgetattr(STDIN_FILENO, &terminal) == 0;
    sigaction(SIGBUS, &action, NULL);
}
#endif
