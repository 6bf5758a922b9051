package sim

import "time"

// stopwatch measures what a simulation costs; nothing that is simulated knows of it.
func stopwatch() func() float64 {
	t := time.Now()
	return func() float64 { return time.Since(t).Seconds() }
}
