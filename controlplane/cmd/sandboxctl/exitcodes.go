package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

// The exit statuses; exitTable says what they mean.
const (
	exitOK             = 0
	exitFailed         = 1
	exitUsage          = 2
	exitApplication    = 3
	exitInfrastructure = 4
	exitCanceled       = 5
	exitRefused        = 6
	exitNotFound       = 7
	exitUnreachable    = 8
	exitTimeout        = 9
	exitAsks           = 10
	exitInterrupted    = 130
)

// exitTable is the one place that says what an exit status means; help and
// README show it.
func exitTable() [][2]string {
	row := func(code int, text string) [2]string { return [2]string{strconv.Itoa(code), text} }
	return [][2]string{
		row(exitOK, "done; of `run`, `send` and `task watch`: the task is completed"),
		row(exitFailed, "failed, for any other reason"),
		row(exitUsage, "the command line is wrong"),
		row(exitApplication, "the task's command failed"),
		row(exitInfrastructure, "the task's command could not be run to its end"),
		row(exitCanceled, "the task, or the long request, was cancelled"),
		row(exitRefused, "refused: the request or the loadout breaks a rule, and nothing was done"),
		row(exitNotFound, "there is no such machine, task, request, loadout, orphan or context"),
		row(exitUnreachable, "no server answers, or it does not accept the token"),
		row(exitTimeout, "`wait` waited as long as it may"),
		row(exitAsks, "the task asks something and nobody was there to answer: `sandboxctl prompt answer` does"),
		row(exitInterrupted, "interrupted before an end was known"),
	}
}

// exitCodesTopic is a page of help, not a command.
func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("What the exit status of sandboxctl means.\n\n")
	for _, row := range exitTable() {
		fmt.Fprintf(&b, "  %-4s %s\n", row[0], strings.ReplaceAll(row[1], "`", ""))
	}
	b.WriteString("\nWhen several machines are named and they fail in different ways, the status is 1.")
	return &cobra.Command{Use: "exit-codes", Short: "What the exit status means", Long: b.String()}
}

// exitError ends the program with a certain status, and silently so when it
// has no error of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitCodeOf finds the status for an error. A command that knows better says
// so by an exitError.
func exitCodeOf(err error) int {
	var (
		exit    *exitError
		problem *problemError
		answer  *invoke.Error
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &problem) && strings.HasSuffix(problem.Code, ".not_found"):
		return exitNotFound
	case errors.As(err, &problem):
		return exitCodeOfStatus(problem.Status)
	case errors.As(err, &answer):
		return exitCodeOfStatus(answer.HTTPStatus)
	case errors.Is(err, syscall.ECONNREFUSED):
		return exitUnreachable
	}
	return exitFailed
}

func exitCodeOfStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return exitRefused
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitUnreachable
	}
	return exitFailed
}

// exitCodeOfAll is the status that all of several errors have in common.
func exitCodeOfAll(errs []error) int {
	code := exitOK
	for _, err := range errs {
		switch one := exitCodeOf(err); {
		case code == exitOK:
			code = one
		case code != one:
			return exitFailed
		}
	}
	return code
}

// joined is several errors as one, with the status they have in common.
func joined(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &exitError{exitCodeOfAll(errs), &allErrors{errs}}
}

func usagef(next, format string, args ...any) error {
	return &exitError{exitUsage, withRemedy(fmt.Errorf(format, args...), next)}
}

// remedy is an error together with what to do about it.
type remedy struct {
	error
	next string
}

func (e *remedy) Unwrap() error { return e.error }

func withRemedy(err error, next string) error { return &remedy{error: err, next: next} }

// remedyOf finds what to do about err. Of several errors each has its say.
func remedyOf(err error) string {
	if many, ok := errorsIn(err); ok {
		var all []string
		for _, one := range many {
			if next := remedyOf(one); next != "" && !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
		return strings.Join(all, "\n")
	}
	var (
		r       *remedy
		problem *problemError
		a2a     *invoke.Error
	)
	switch {
	case errors.As(err, &r):
		return r.next
	case errors.As(err, &problem):
		return problem.Remediation
	case errors.As(err, &a2a):
		return a2a.Remedy
	case errors.Is(err, context.DeadlineExceeded):
		return "see the log of sandboxd"
	}
	return ""
}

// errorsIn returns the errors that were joined, if err is nothing but that.
func errorsIn(err error) ([]error, bool) {
	var all *allErrors
	if !errors.As(err, &all) {
		return nil, false
	}
	return all.errs, true
}

// allErrors is what went wrong with several machines.
type allErrors struct{ errs []error }

func (e *allErrors) Error() string { return errors.Join(e.errs...).Error() }

func (e *allErrors) Unwrap() []error { return e.errs }
