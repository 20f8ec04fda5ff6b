/*
 * What happens when the system cannot give a page of a mapped file: the file was truncated while
 * its weights were in use, or its device fails. The read that met it may be any kernel's, on any
 * thread, so a program may ask for one line and an exit code instead of a death by SIGBUS.
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

enum { BAD_MODEL = 3 }; /* as BAD_MODEL in src/cli/application.py */

/* The terminal on standard input as it was at the start: a chat turns its echo off. */
static struct termios terminal;
static int is_terminal = 0;

static void restore_terminal(void)
{
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTTOU); /* else a process in the background would be stopped */
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
    if (info->si_code != BUS_ADRERR) { /* sent by a process, or another fault: as without us */
        struct sigaction action = {.sa_handler = SIG_DFL};
        sigaction(number, &action, NULL);
        raise(number);
        return;
    }
    while (atomic_flag_test_and_set(&is_reported)) /* several threads may meet such a page */
        pause();
    ptrdiff_t skipped = isatty(STDERR_FILENO) ? 0 : 1; /* an answer may have left its line open */
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
