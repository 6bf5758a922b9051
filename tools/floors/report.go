package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Setting is one thing that is tried.
type Setting struct {
	Wire   string  `json:"wire"`
	Shape  string  `json:"shape"`                    // pair: host b to a; incast: four hosts to a
	Limit  string  `json:"limit,omitempty"`          // rate of each plane
	Rule   string  `json:"profile"`                  // delay-ecn, fixed
	Noise  float64 `json:"noise_seconds"`            // of the wire
	Target float64 `json:"target_seconds,omitempty"` // 0 = by the wire
	Window int     `json:"fixed_window_bytes,omitempty"`
}

// Run is what one run of a setting brought. Rates are bits a second over all planes; the rest are means over time, planes and
// senders.
type Run struct {
	Bits          float64            `json:"goodput_bits_per_second"` // from BTH to ICRC, copies left out
	OfHome        float64            `json:"of_default_ratio"`        // of the same round's default: noise 2 ms, delay-ecn
	Retransmitted float64            `json:"retransmitted_ratio"`     // of the packets sent
	Spurious      float64            `json:"spurious_ratio"`          // of the packets sent: called lost, but they had arrived
	Drops         map[string]float64 `json:"drops_packets"`
	TrueBits      float64            `json:"true_receive_bits_per_second"`     // with headers and copies
	MeasuredBits  float64            `json:"measured_receive_bits_per_second"` // what the receiver takes for the rate of its port
	Factor        float64            `json:"grant_factor_ratio"`
	Grant         float64            `json:"grant_bytes"`  // to a sender, a plane
	Window        float64            `json:"window_bytes"` // of a sender, a plane
	Base          float64            `json:"base_rtt_seconds"`
	SRTT          float64            `json:"srtt_seconds"`
	Queue         float64            `json:"queue_delay_seconds"`
}

// Spread is of round trips, seconds.
type Spread struct {
	Least float64 `json:"least"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Most  float64 `json:"most"`
}

// Case is a setting and its runs, one a round.
type Case struct {
	Setting Setting `json:"setting"`
	Runs    []Run   `json:"runs"`
}

// Result is what build/floors.json holds.
type Result struct {
	Time    string               `json:"time"`
	CPUs    int                  `json:"cpus"`
	Load    int                  `json:"busy_programs"`
	Planes  int                  `json:"planes"`
	Seconds int                  `json:"seconds"`
	Noise   map[string][]Spread  `json:"probe_round_trips_seconds"` // by wire, nothing else under way
	TCPBits map[string][]float64 `json:"tcp_bits_per_second"`       // by wire's labs; over a veth
	Cases   []*Case              `json:"cases"`
}

func (r *Result) add(s Setting, x Run) {
	i := slices.IndexFunc(r.Cases, func(c *Case) bool { return c.Setting == s })
	if i < 0 {
		r.Cases = append(r.Cases, &Case{Setting: s})
		i = len(r.Cases) - 1
	}
	r.Cases[i].Runs = append(r.Cases[i].Runs, x)
}

// ofHome fills in the ratios to the default of the same round.
func (r *Result) ofHome() {
	for _, c := range r.Cases {
		h := Setting{Wire: c.Setting.Wire, Shape: c.Setting.Shape, Limit: c.Setting.Limit, Rule: "delay-ecn", Noise: home.Seconds()}
		for _, d := range r.Cases {
			if d.Setting != h {
				continue
			}
			for i := range c.Runs {
				if i < len(d.Runs) && d.Runs[i].Bits > 0 {
					c.Runs[i].OfHome = c.Runs[i].Bits / d.Runs[i].Bits
				}
			}
		}
	}
}

func (r *Result) print(w io.Writer) {
	r.ofHome()
	fmt.Fprintf(w, "%d CPUs, %d busy programs, %d planes; runs of %d s: median (lowest to highest)\n", r.CPUs, r.Load, r.Planes, r.Seconds)
	for _, wire := range slices.Sorted(maps.Keys(r.TCPBits)) {
		fmt.Fprintf(w, "\n%s: iperf3 over a veth %s Gbit/s\n", wire, spread(r.TCPBits[wire], 1e-9, 2))
		for _, s := range r.Noise[wire] {
			fmt.Fprintf(w, "%s: probes with nothing else under way, µs: least %.0f, p50 %.0f, p90 %.0f, p99 %.0f, most %.0f\n",
				wire, s.Least*1e6, s.P50*1e6, s.P90*1e6, s.P99*1e6, s.Most*1e6)
		}
	}
	group := ""
	for _, c := range r.sorted() {
		if g := strings.TrimSuffix(c.Setting.String(), ", "+c.Setting.rule()); g != group {
			group = g
			fmt.Fprintf(w, "\n%s\n", g)
			fmt.Fprintf(w, "%-16s %22s %22s %8s %8s %9s %9s %5s %9s %9s %8s %8s %8s  %s\n", "rule", "Gbit/s", "of the default", "again %",
				"vain %", "true", "measured", "g", "grant KiB", "window", "base µs", "rtt µs", "queue µs", "dropped, share of what came")
		}
		c.print(w)
	}
}

// sorted puts the settings into the order of the tables.
func (r *Result) sorted() []*Case {
	all := slices.Clone(r.Cases)
	key := func(s Setting) string {
		kind := 0
		switch {
		case s.Rule == "fixed":
			kind = 2
		case s.Target > 0:
			kind = 1
		}
		return fmt.Sprintf("%s %s %8s %d %010.6f %010.6f %08d", s.Wire, strings.Replace(s.Shape, "incast", "q", 1), s.Limit, kind, s.Noise, s.Target, s.Window)
	}
	slices.SortStableFunc(all, func(a, b *Case) int { return strings.Compare(key(a.Setting), key(b.Setting)) })
	return all
}

func (c *Case) print(w io.Writer) {
	of := func(f func(x *Run) float64) []float64 {
		var v []float64
		for i := range c.Runs {
			v = append(v, f(&c.Runs[i]))
		}
		return v
	}
	mid := func(f func(x *Run) float64) float64 { return median(of(f)) }
	fmt.Fprintf(w, "%-16s %22s %22s %8.2f %8.2f %9.2f %9.2f %5.2f %9.0f %9.0f %8.0f %8.0f %8.0f  %s\n", c.Setting.rule(),
		spread(of(func(x *Run) float64 { return x.Bits }), 1e-9, 2), spread(of(func(x *Run) float64 { return x.OfHome }), 1, 2),
		100*mid(func(x *Run) float64 { return x.Retransmitted }), 100*mid(func(x *Run) float64 { return x.Spurious }),
		mid(func(x *Run) float64 { return x.TrueBits })/1e9, mid(func(x *Run) float64 { return x.MeasuredBits })/1e9,
		mid(func(x *Run) float64 { return x.Factor }), mid(func(x *Run) float64 { return x.Grant })/1024, mid(func(x *Run) float64 { return x.Window })/1024,
		1e6*mid(func(x *Run) float64 { return x.Base }), 1e6*mid(func(x *Run) float64 { return x.SRTT }), 1e6*mid(func(x *Run) float64 { return x.Queue }), c.drops())
}

// drops names what was dropped in all runs, by reason.
func (c *Case) drops() string {
	sum := map[string]float64{}
	for _, x := range c.Runs {
		for why, n := range x.Drops {
			sum[why] += n
		}
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", why, sum[why]))
	}
	return strings.Join(parts, ", ")
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// spread prints median, lowest and highest.
func spread(v []float64, unit float64, digits int) string {
	if len(v) == 0 {
		return "-"
	}
	v = slices.Sorted(slices.Values(v))
	return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, v[len(v)/2]*unit, digits, v[0]*unit, digits, v[len(v)-1]*unit)
}
