// Package sweep runs one plan at many points: each combination of overrides and seeds is a process of its own, on the cores of this
// machine or as tasks of Slurm's job arrays. What is done is never done again, and what is not done never looks as if it were.
//
// The directory of a sweep:
//
//	sweep.json             state of every point; read when the sweep goes on
//	results.csv, .json     a row for each point, whatever became of it
//	points/NAME/           a complete result: outcome.json, result.json, stderr.txt and what `mroce sim run` wrote
//	points/NAME.partial/   a result that says of itself that it is partial
//	points/NAME.failed/    what a failed run left
//	slurm/                 job scripts and point lists
//
// Directories are renamed into their places when a run has ended: a name without a suffix means complete.
package sweep

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Sweep is a sweep file.
type Sweep struct {
	File    string // name for messages
	Plan    string // a path, or the name of a ready plan
	line    int    // of Plan
	Set     []Value
	Seeds   []uint64
	Keys    []string // what varies, in the order of the file
	Points  []Point
	Timeout time.Duration // of each run; 0 = none
	Retries int           // further runs of a point that failed
	Memory  int64         // bytes that a run may have; 0 = not said
}

// Value is one override of the plan: `--set Key=Text`.
type Value struct {
	Key  string `json:"key"`
	Text string `json:"value"`
}

// Point is one run.
type Point struct {
	Name string
	Set  []Value // of this point, without Sweep.Set, in the order of Sweep.Keys
	Seed uint64
	Line int // of the grid or of the point in the list
}

// get returns the text of a key; "seed" is one, too.
func (p Point) get(key string) (string, bool) {
	if key == "seed" {
		return strconv.FormatUint(p.Seed, 10), true
	}
	for _, v := range p.Set {
		if v.Key == key {
			return v.Text, true
		}
	}
	return "", false
}

// overrides are those of a point: the sweep's that it does not replace, then its own.
func (s *Sweep) overrides(p *Point) (all []Value) {
	for _, v := range s.Set {
		if _, is := p.get(v.Key); !is {
			all = append(all, v)
		}
	}
	return append(all, p.Set...)
}

// files are those that a point's overrides name: they are read like those that the plan names.
func (s *Sweep) files(p *Point) (files []string) {
	for _, v := range s.overrides(p) {
		if key := v.Key[strings.LastIndexByte(v.Key, '.')+1:]; key == "file" {
			files = append(files, v.Text)
		}
		var doc yaml.Node
		if yaml.Unmarshal([]byte(v.Text), &doc) == nil { // {pattern: cm, file: x.cm}
			files = append(files, filesOf(&doc)...)
		}
	}
	return files
}

// canonical is the point as text, the same for the same values.
func (p Point) canonical() string {
	var b strings.Builder
	set := slices.Clone(p.Set)
	slices.SortFunc(set, func(a, b Value) int { return strings.Compare(a.Key, b.Key) })
	for _, v := range set {
		fmt.Fprintf(&b, "%q=%q\n", v.Key, v.Text)
	}
	fmt.Fprintf(&b, "seed=%d\n", p.Seed)
	return b.String()
}

const nameMax = 120 // a file name has 255 bytes, and suffixes follow

// name makes a file name of a point's values: the last words of keys where those are enough to tell them apart.
func (p Point) name(short map[string]string) string {
	var words []string
	for _, v := range p.Set {
		words = append(words, safe(short[v.Key])+"="+safe(v.Text))
	}
	n := strings.Join(append(words, "seed="+strconv.FormatUint(p.Seed, 10)), "_") // no comma: the table is easier to cut
	if len(n) > nameMax {
		n = n[:nameMax-17] + "-" + p.hash()
	}
	return n
}

// hash is long enough that among as many points as a sweep may have no two have the same.
func (p Point) hash() string {
	sum := sha256.Sum256([]byte(p.canonical()))
	return hex.EncodeToString(sum[:8])
}

// safe leaves letters, digits and what no shell and no file system minds.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '+', r == '_':
			return r
		default:
			return '-'
		}
	}, strings.ReplaceAll(strings.ReplaceAll(s, "%", "pct"), "]", ""))
}

// shortKeys maps each key to its last word, or to itself where two keys end in the same one.
func shortKeys(keys []string) map[string]string {
	last := func(k string) string { return k[strings.LastIndexByte(k, '.')+1:] }
	count := map[string]int{}
	for _, k := range keys {
		count[last(k)]++
	}
	short := map[string]string{}
	for _, k := range keys {
		if short[k] = last(k); count[last(k)] > 1 {
			short[k] = k
		}
	}
	return short
}

// nameAll gives each point a name of its own.
func (s *Sweep) nameAll() {
	short := shortKeys(s.Keys)
	count := map[string]int{}
	for i := range s.Points {
		s.Points[i].Name = s.Points[i].name(short)
		count[strings.ToLower(s.Points[i].Name)]++ // some file systems do not tell cases apart
	}
	for i := range s.Points {
		if p := &s.Points[i]; count[strings.ToLower(p.Name)] > 1 {
			p.Name += "-" + p.hash()
		}
	}
}

// digest names all that a point's result depends on: the plan and what it reads (input), overrides, seed, program.
func (s *Sweep) digest(p Point, input, commit string) string {
	h := sha256.New()
	fmt.Fprintf(h, "sweep 1\ninput=%s\ncommit=%q\n", input, commit)
	for _, v := range s.Set { // in the order of the file: later ones win
		fmt.Fprintf(h, "set %q=%q\n", v.Key, v.Text)
	}
	h.Write([]byte(p.canonical()))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
