// Package fail is an error with the exit code that belongs to it.
package fail

import (
	"errors"
	"fmt"
)

// Exit codes of all our programs.
const (
	OK      = 0
	Failed  = 1   // it failed; the message says what
	Usage   = 2   // wrong usage or file
	Lacking = 3   // this machine lacks something; the message says what and how to get it
	Partial = 4   // results are there, marked as partial
	Stopped = 130 // Ctrl-C
)

// Error is a message for the user. Cause is shown with -v only.
type Error struct {
	Code  int
	Msg   string
	Cause error
}

// Error returns the message for the user.
func (e *Error) Error() string { return e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// New returns an error with exit code c. A %w verb in the format sets the cause as in fmt.Errorf.
func New(c int, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Msg: err.Error(), Cause: errors.Unwrap(err)}
}

// Usagef is for wrong usage or a wrong file.
func Usagef(format string, args ...any) *Error { return New(Usage, format, args...) }

// Lackf is for something this machine does not have or allow.
func Lackf(format string, args ...any) *Error { return New(Lacking, format, args...) }

// Failf is for everything else that went wrong.
func Failf(format string, args ...any) *Error { return New(Failed, format, args...) }

// Code returns the exit code of err: 0 for nil, 1 where it does not say.
func Code(err error) int {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Failed
}
