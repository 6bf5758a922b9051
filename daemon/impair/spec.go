package impair

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/internal/link"
)

// Spec is what a wrapped port does to packets: Tx to those the NIC sends, Rx to those it receives.
//
// In a lab every NIC is impaired at Tx only, so a packet passes one impairment, not two.
type Spec struct{ Tx, Rx link.Spec }

// DefaultQueue is the queue of a rate that was given without one.
const DefaultQueue = 256 << 10

// Zero reports whether nothing is impaired.
func (s Spec) Zero() bool { return s.Tx.Zero() && s.Rx.Zero() }

// Check says what is wrong with s.
func (s Spec) Check() error {
	if err := s.Tx.Check(); err != nil {
		return fmt.Errorf("impair: tx: %w", err)
	}
	if err := s.Rx.Check(); err != nil {
		return fmt.Errorf("impair: rx: %w", err)
	}
	return nil
}

// A word sets one thing of one direction and prints it ("" when it is not set).
type word struct {
	name  string
	help  string
	set   func(s *link.Spec, v string) error
	print func(s *link.Spec) string
}

var words = []word{
	{"loss", "share of packets lost: loss=1%", func(s *link.Spec, v string) (err error) {
		s.Loss, err = ParseShare(v)
		return err
	}, func(s *link.Spec) string { return share(s.Loss) }},
	{"burst", "mean number of packets lost in a row: burst=8", func(s *link.Spec, v string) (err error) {
		if s.Burst, err = strconv.ParseFloat(v, 64); err != nil {
			return fmt.Errorf("%q is not a number of packets such as 8", v)
		}
		return nil
	}, func(s *link.Spec) string { return number(s.Burst) }},
	{"delay", "added to every packet: delay=20us", func(s *link.Spec, v string) (err error) {
		s.Delay, err = ParseDuration(v)
		return err
	}, func(s *link.Spec) string { return units(float64(s.Delay), timeUnits) }},
	{"jitter", "varies the delay by up to this, order kept: jitter=5us", func(s *link.Spec, v string) (err error) {
		s.Jitter, err = ParseDuration(v)
		return err
	}, func(s *link.Spec) string { return units(float64(s.Jitter), timeUnits) }},
	{"reorder", "share of packets held back, by up to a time: reorder=1% or reorder=1%:50us", func(s *link.Spec, v string) (err error) {
		p, by, found := strings.Cut(v, ":")
		if s.ReorderBy = 0; found {
			if s.ReorderBy, err = ParseDuration(by); err != nil {
				return err
			}
		}
		s.Reorder, err = ParseShare(p)
		return err
	}, func(s *link.Spec) string {
		if s.Reorder == 0 || s.ReorderBy == 0 || s.ReorderBy == link.DefaultReorderBy {
			return share(s.Reorder)
		}
		return share(s.Reorder) + ":" + units(float64(s.ReorderBy), timeUnits)
	}},
	{"dup", "share of packets that arrive twice: dup=1%", func(s *link.Spec, v string) (err error) {
		s.Duplicate, err = ParseShare(v)
		return err
	}, func(s *link.Spec) string { return share(s.Duplicate) }},
	{"corrupt", "share of packets with a wrong bit: corrupt=0.1%", func(s *link.Spec, v string) (err error) {
		s.Corrupt, err = ParseShare(v)
		return err
	}, func(s *link.Spec) string { return share(s.Corrupt) }},
	{"rate", "bits per second, 0 = no limit: rate=10Gbit", func(s *link.Spec, v string) (err error) {
		s.RateBps, err = ParseRate(v)
		return err
	}, func(s *link.Spec) string { return units(float64(s.RateBps), rateUnits) }},
	{"queue", "bytes that may wait for the rate: queue=256KiB", func(s *link.Spec, v string) (err error) {
		s.Queue, err = ParseSize(v)
		return err
	}, func(s *link.Spec) string { return units(float64(s.Queue), sizeUnits) }},
	{"ecn", "queue from which packets are marked, and all are: ecn=64KiB:192KiB", func(s *link.Spec, v string) (err error) {
		lo, hi, found := strings.Cut(v, ":")
		if s.ECNMin, err = ParseSize(lo); err != nil {
			return err
		}
		if s.ECNMax = s.ECNMin; found {
			s.ECNMax, err = ParseSize(hi)
		}
		return err
	}, func(s *link.Spec) string {
		if s.ECNMax == 0 {
			return ""
		}
		return formatUnits(float64(s.ECNMin), sizeUnits) + ":" + formatUnits(float64(s.ECNMax), sizeUnits)
	}},
}

// Help lists the words, one a line, for the help of commands that take them.
func Help() string {
	var b strings.Builder
	for _, w := range words {
		fmt.Fprintf(&b, "%-8s %s\n", w.name, w.help)
	}
	b.WriteString("down     nothing passes, both ways; up ends it\nclear    no impairment at all\n")
	b.WriteString("rx.WORD  acts on what the NIC receives; a bare word acts on what it sends\n")
	return b.String()
}

// Parse applies words to s, as in "loss=1%", "rx.delay=20us", "down". What no word names stays as it was.
func (s Spec) Parse(args []string) (Spec, error) {
	for _, a := range args {
		if err := s.apply(a); err != nil {
			return Spec{}, err
		}
	}
	for _, d := range []*link.Spec{&s.Tx, &s.Rx} {
		if d.RateBps > 0 && d.Queue == 0 {
			d.Queue = DefaultQueue
		}
	}
	if err := s.Check(); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// Parse reads words into a new Spec.
func Parse(args []string) (Spec, error) { return Spec{}.Parse(args) }

func (s *Spec) apply(arg string) error {
	name, value, hasValue := strings.Cut(arg, "=")
	dirs := []*link.Spec{&s.Tx}
	bare := name
	if w, ok := strings.CutPrefix(name, "rx."); ok {
		dirs[0], bare = &s.Rx, w
	} else if w, ok := strings.CutPrefix(name, "tx."); ok {
		bare = w
	}
	switch {
	case bare == "clear" && !hasValue && bare == name:
		*s = Spec{}
		return nil
	case (bare == "down" || bare == "up") && !hasValue:
		if bare == name {
			dirs = []*link.Spec{&s.Tx, &s.Rx}
		}
		for _, d := range dirs {
			d.Down = bare == "down"
		}
		return nil
	}
	for i := range words {
		w := &words[i]
		if w.name != bare {
			continue
		}
		if !hasValue || value == "" {
			return fmt.Errorf("impair: %q needs a value: %s", name, w.help)
		}
		if err := w.set(dirs[0], value); err != nil {
			return fmt.Errorf("impair: %s: %w", name, err)
		}
		return nil
	}
	if bare == "down" || bare == "up" || bare == "clear" {
		return fmt.Errorf("impair: %q: down, up and clear take no value, clear no direction", arg)
	}
	return fmt.Errorf("impair: unknown word %q, did you mean %q?", name, nearest(bare))
}

// String prints s as the words that make it; "clear" when nothing is impaired.
func (s Spec) String() string {
	var out []string
	both := s.Tx.Down && s.Rx.Down
	for _, d := range []struct {
		prefix, down string
		s            *link.Spec
	}{{"", "tx.down", &s.Tx}, {"rx.", "rx.down", &s.Rx}} {
		for i := range words {
			if v := words[i].print(d.s); v != "" {
				out = append(out, d.prefix+words[i].name+"="+v)
			}
		}
		if d.s.Down && !both {
			out = append(out, d.down)
		}
	}
	if both {
		out = append(out, "down")
	}
	if len(out) == 0 {
		return "clear"
	}
	return strings.Join(out, " ")
}

func share(v float64) string {
	if v == 0 {
		return ""
	}
	return formatShare(v)
}

func number(v float64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func units(v float64, u []unit) string {
	if v == 0 {
		return ""
	}
	return formatUnits(v, u)
}

// nearest returns the known word with the smallest edit distance.
func nearest(w string) string {
	best, bestD := "", 1<<30
	try := func(name string) {
		if d := distance(w, name); d < bestD {
			best, bestD = name, d
		}
	}
	for i := range words {
		try(words[i].name)
	}
	for _, n := range []string{"down", "up", "clear"} {
		try(n)
	}
	return best
}

// distance counts the insertions, deletions and changes between two short words; a swap of neighbours counts 1.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range len(b) + 1 {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
