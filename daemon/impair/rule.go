package impair

import (
	"fmt"
	"strings"
	"time"
)

// Rule is what some planes of some hosts suffer, perhaps only from some time on, or for a while.
type Rule struct {
	Planes []int    // empty: all
	Hosts  []string // empty: all
	At     time.Duration
	For    time.Duration // 0: from then on
	Words  []string      // as Parse takes them: loss=1%, delay=20us, rx.loss=1% …
	Line   int           // of the file that it is from
}

// Timed reports whether the rule does not act from the beginning to the end.
func (r Rule) Timed() bool { return r.At > 0 || r.For > 0 }

// String prints the rule as `lab impair` takes it.
func (r Rule) String() string {
	var b strings.Builder
	b.WriteString(strings.Join(r.Words, " "))
	if r.At > 0 {
		fmt.Fprintf(&b, " at %v", r.At)
	}
	if r.For > 0 {
		fmt.Fprintf(&b, " for %v", r.For.Round(time.Millisecond))
	}
	return b.String()
}
