package result

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Beside is a result among others that it is compared with.
type Beside struct {
	Name    string   `json:"name"` // what the user calls it
	Plan    string   `json:"plan"`
	Seed    uint64   `json:"seed"`
	Commit  string   `json:"commit,omitempty"`
	Partial bool     `json:"partial"`
	Why     string   `json:"why,omitempty"`
	Figure  string   `json:"figure"`            // which number is compared
	Value   float64  `json:"value"`             // of this result; -1 = it has none
	Ratio   float64  `json:"ratio"`             // of the first result's; -1 = one of the two has none
	Differs []string `json:"differs,omitempty"` // fields of setup that are others than the first result's
	Summary Summary  `json:"summary"`
	Groups  []Group  `json:"groups"`
	Hash    string   `json:"hash"`
}

// Table is results beside each other; the first is what the others are compared with.
type Table []Beside

// Compared sets results beside the first of them by a number of theirs, named as in Compare.
func Compared(results []*Result, names []string, figure string) (Table, error) {
	if len(results) < 2 || len(names) != len(results) {
		return nil, fmt.Errorf("%d results with %d names: two and more are compared, each with a name", len(results), len(names))
	}
	var t Table
	for i, r := range results {
		v, err := r.value(figure)
		if err != nil {
			return nil, err
		}
		b := Beside{Name: names[i], Plan: r.Plan, Seed: r.Seed, Commit: r.Commit, Partial: r.Partial, Why: r.Why, Figure: figure, Value: v, Ratio: -1,
			Differs: results[0].Setup.differs(&r.Setup), Summary: r.Summary, Groups: r.Groups, Hash: r.Hash}
		if bad(v) {
			b.Value = -1
		} else if first, _ := results[0].value(figure); !bad(v / first) {
			b.Ratio = v / first
		}
		t = append(t, b)
	}
	return t, nil
}

// differs names the fields in which another setup is another one.
func (s *Setup) differs(o *Setup) (names []string) {
	a, b := reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem()
	for f := range fields(a.Type()) {
		if !reflect.DeepEqual(a.FieldByIndex(f.Index).Interface(), b.FieldByIndex(f.Index).Interface()) {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			names = append(names, tag)
		}
	}
	return names
}

// Text writes the table, and below it in what the setups are others than the first.
func (t Table) Text(w io.Writer) error {
	var b bytes.Buffer
	out := table{{"result", "seed", "done", "p50(us)", "p99(us)", "max(us)", "goodput(Gbit/s)", "of links(%)", "busbw(GB/s)", "retransmitted", "dropped", "pauses", "Jain",
		t[0].Figure, "of the first"}}
	for i := range t {
		out = append(out, t[i].cells())
	}
	out.write(&b)
	for i := range t {
		x := &t[i]
		if x.Partial {
			fmt.Fprintf(&b, "PARTIAL: %s: %s\n", Clean(x.Name), Clean(x.Why))
		}
		if len(x.Differs) > 0 {
			fmt.Fprintf(&b, "%s differs from %s in %s\n", Clean(x.Name), Clean(t[0].Name), strings.Join(x.Differs, ", "))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (b *Beside) cells() []string {
	s := &b.Summary
	done := fmt.Sprintf("%d/%d", s.Done, s.Flows)
	if b.Partial {
		done += " PARTIAL"
	}
	bus := "-"
	for _, g := range b.Groups {
		if g.Done && g.BusBps > 0 {
			bus = gbyte(g.BusBps)
			break
		}
	}
	d := func(n uint64) string { return strconv.FormatUint(n, 10) }
	value, ratio := "-", "-"
	if b.Value >= 0 {
		value = strconv.FormatFloat(b.Value, 'g', 5, 64)
	}
	if b.Ratio >= 0 {
		ratio = strconv.FormatFloat(math.Round(b.Ratio*1e4)/1e4, 'f', -1, 64)
	}
	return []string{Clean(b.Name), d(b.Seed), done, micros(s.FCTP50), micros(s.FCTP99), micros(s.FCTMax), fmt.Sprintf("%.2f", s.Goodput/1e9), percent(s.GoodputShare), bus,
		d(s.Retransmits), d(s.Dropped), d(s.PauseFrames), fmt.Sprintf("%.4f", s.Jain), value, ratio}
}
