// Package mono is time as the core knows it: an int64 of nanoseconds that only the caller moves.
// There is no Now here on purpose: time is an argument everywhere below the drivers.
package mono

import "fmt"

// Time is nanoseconds on some monotone clock. The zero of the clock has no meaning; 0 is used for "never happened".
type Time int64

// Duration is a span of nanoseconds.
type Duration int64

// Units of Duration.
const (
	Nanosecond  Duration = 1
	Microsecond          = 1000 * Nanosecond
	Millisecond          = 1000 * Microsecond
	Second               = 1000 * Millisecond
)

// Never is later than every time that occurs.
const Never Time = 1<<63 - 1

// Add returns t + d.
func (t Time) Add(d Duration) Time { return t + Time(d) }

// Sub returns the span from u to t.
func (t Time) Sub(u Time) Duration { return Duration(t - u) }

// Before reports whether t is earlier than u.
func (t Time) Before(u Time) bool { return t < u }

// Min returns the earlier of two times.
func Min(a, b Time) Time {
	if a < b {
		return a
	}
	return b
}

// Or is *d, or other where d is nil: for settings of which 0 is a value.
func Or(d *Duration, other Duration) Duration {
	if d == nil {
		return other
	}
	return *d
}

// Micros returns d in microseconds.
func (d Duration) Micros() float64 { return float64(d) / 1e3 }

// Seconds returns d in seconds.
func (d Duration) Seconds() float64 { return float64(d) / 1e9 }

// String prints a duration with the unit that fits.
func (d Duration) String() string {
	switch a := max(d, -d); {
	case a < Microsecond:
		return fmt.Sprintf("%dns", int64(d))
	case a < Millisecond:
		return fmt.Sprintf("%.1fµs", float64(d)/1e3)
	case a < Second:
		return fmt.Sprintf("%.2fms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.3fs", float64(d)/1e9)
}
