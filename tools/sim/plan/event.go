package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// String is the event in a line, such as "plane 1 down from 30 us for 100 us".
func (e *Event) String() string {
	c := &e.Change
	var what []string
	add := func(on bool, format string, args ...any) {
		if on {
			what = append(what, fmt.Sprintf(format, args...))
		}
	}
	share := func(x float64) string { return strconv.FormatFloat(100*x, 'g', -1, 64) + " %" }
	add(c.Down, "down")
	add(c.Loss > 0, "loses %s", share(c.Loss))
	add(c.Burst > 1, "in bursts of %g", c.Burst)
	add(c.DataOnly, "(data only)")
	add(c.Slow > 1, "slower by %g", c.Slow)
	add(c.Delay > 0, "later by %v", c.Delay)
	add(c.Flap > 0, "flaps every %v", c.Flap)
	s := fmt.Sprintf("%s %s from %v", e.Target, strings.Join(what, " "), e.At)
	if e.For > 0 {
		s += fmt.Sprintf(" for %v", e.For)
	}
	return s
}
