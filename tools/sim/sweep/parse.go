package sweep

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/labfile"
)

// pointsMax bounds a sweep: more is a slip of the keyboard.
const pointsMax = 100_000

// keyForm is what a key of a plan looks like: transport.kind, events[0].loss.
var keyForm = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\[[0-9]+\])*(\.[a-z][a-z0-9_-]*(\[[0-9]+\])*)*$`)

// Parse reads a sweep file; file is its name for messages. The plan is not read here. Errors say file:line and have exit code 2.
func Parse(file string, data []byte) (*Sweep, error) {
	p := &parser{file: file, s: &Sweep{File: file}}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, p.errf(1, "the file is empty; a sweep begins with plan: and grid:")
	} else if err != nil {
		return nil, p.yamlError(err)
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, p.errf(1, "more than one YAML document; a sweep is one")
	}
	if err := p.sweep(doc.Content[0]); err != nil {
		return nil, err
	}
	return p.s, nil
}

type parser struct {
	file string
	s    *Sweep
	grid []axis
	list []Point // of points:, without seeds
	out  []exclusion
	at   map[string]int // line of each top-level key
}

// axis is one key of the grid with its values.
type axis struct {
	key    string
	values []string
	line   int
}

// exclusion drops the points that have one of the values of every axis.
type exclusion struct {
	axes []axis
	line int
}

func (p *parser) errf(line int, format string, args ...any) error {
	return fail.Usagef("%s:%d: %s", p.file, max(line, 1), fmt.Sprintf(format, args...))
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

func (p *parser) yamlError(err error) error {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return p.errf(line, "%s", m[2])
	}
	return p.errf(1, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
}

func (p *parser) sweep(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return p.errf(n.Line, "a sweep is a list of `key: value`, beginning with plan: and grid:")
	}
	p.at = map[string]int{}
	known := map[string]func(*yaml.Node) error{
		"plan": func(v *yaml.Node) (err error) { p.s.line = v.Line; p.s.Plan, err = p.text(v, "plan"); return err },
		"set":  p.set, "seeds": p.seeds, "grid": p.gridOf, "points": p.points, "exclude": p.exclude,
		"timeout": p.timeout, "retries": p.retries, "memory": p.memory,
	}
	err := p.mapping(n, "the sweep", func(k, v *yaml.Node) error {
		read, is := known[k.Value]
		if !is {
			return p.unknown(k, "key", mapKeys(known))
		}
		p.at[k.Value] = k.Line
		return read(v)
	})
	switch {
	case err != nil:
		return err
	case p.s.Plan == "":
		return p.errf(n.Line, "no plan:, a plan file or the name of a ready plan")
	case len(p.grid) == 0 && len(p.list) == 0 && len(p.s.Seeds) == 0:
		return p.errf(n.Line, "nothing varies: say grid:, points: or seeds:")
	}
	if len(p.s.Seeds) == 0 {
		p.s.Seeds = []uint64{1}
	}
	return p.expand()
}

func mapKeys[V any](m map[string]V) []string {
	var ks []string
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

func (p *parser) unknown(k *yaml.Node, what string, known []string) error {
	if near := labfile.Nearest(k.Value, known); near != "" {
		return p.errf(k.Line, "unknown %s %q; did you mean %q?", what, k.Value, near)
	}
	return p.errf(k.Line, "unknown %s %q; known: %s", what, k.Value, strings.Join(known, ", "))
}

// mapping calls f for each key and value, in the order of the file.
func (p *parser) mapping(n *yaml.Node, what string, f func(k, v *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return p.errf(n.Line, "%s must be a list of `key: value`", what)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if seen[k.Value] {
			return p.errf(k.Line, "%q is given twice", k.Value)
		}
		seen[k.Value] = true
		if v.Kind == yaml.AliasNode && v.Alias != nil {
			v = v.Alias
		}
		if err := f(k, v); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) text(n *yaml.Node, what string) (string, error) {
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", p.errf(n.Line, "%s must be one value", what)
	case n.Tag == "!!null" || n.Value == "":
		return "", p.errf(n.Line, "%s has no value", what)
	case strings.ContainsAny(n.Value, "\n\r\x00"):
		return "", p.errf(n.Line, "%s must be one line", what)
	}
	return n.Value, nil
}

// values reads one value or a list of them.
func (p *parser) values(n *yaml.Node, what string) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		v, err := p.text(n, what)
		return []string{v}, err
	}
	if len(n.Content) == 0 {
		return nil, p.errf(n.Line, "%s has no values", what)
	}
	var vs []string
	for _, c := range n.Content {
		v, err := p.text(c, what)
		if err != nil {
			return nil, err
		}
		if slices.Contains(vs, v) {
			return nil, p.errf(c.Line, "%s has %s twice", what, v)
		}
		vs = append(vs, v)
	}
	return vs, nil
}

// key checks a plan's key; whether the plan has it is seen when the plan is read.
func (p *parser) key(k *yaml.Node, v *yaml.Node) error {
	switch {
	case k.Value == "seed":
		return p.errf(k.Line, "seeds stand in seeds:")
	case v.Kind == yaml.MappingNode:
		return p.errf(k.Line, "write keys with dots: %s.KEY", k.Value)
	case !keyForm.MatchString(k.Value):
		return p.errf(k.Line, "%q is no key of a plan; keys look like transport.kind or events[0].loss", k.Value)
	}
	return nil
}

func (p *parser) set(n *yaml.Node) error {
	return p.mapping(n, "set", func(k, v *yaml.Node) error {
		if err := p.key(k, v); err != nil {
			return err
		}
		t, err := p.text(v, k.Value)
		p.s.Set = append(p.s.Set, Value{k.Value, t})
		return err
	})
}

func (p *parser) vary(key string) {
	if !slices.Contains(p.s.Keys, key) {
		p.s.Keys = append(p.s.Keys, key)
	}
}

func (p *parser) gridOf(n *yaml.Node) error {
	return p.mapping(n, "grid", func(k, v *yaml.Node) error {
		if err := p.key(k, v); err != nil {
			return err
		}
		vs, err := p.values(v, k.Value)
		p.grid = append(p.grid, axis{k.Value, vs, k.Line})
		p.vary(k.Value)
		return err
	})
}

func (p *parser) points(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return p.errf(n.Line, "points must be a list, each of it like {transport.kind: ideal, topology.planes: 4}")
	}
	for _, c := range n.Content {
		pt := Point{Line: c.Line}
		err := p.mapping(c, "a point", func(k, v *yaml.Node) error {
			if err := p.key(k, v); err != nil {
				return err
			}
			t, err := p.text(v, k.Value)
			pt.Set = append(pt.Set, Value{k.Value, t})
			p.vary(k.Value)
			return err
		})
		if err != nil {
			return err
		}
		if len(pt.Set) == 0 {
			return p.errf(c.Line, "a point without values")
		}
		p.list = append(p.list, pt)
	}
	return nil
}

func (p *parser) exclude(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return p.errf(n.Line, "exclude must be a list, each of it like {transport.kind: rocev2, topology.planes: [4, 8]}")
	}
	for _, c := range n.Content {
		x := exclusion{line: c.Line}
		err := p.mapping(c, "an exclusion", func(k, v *yaml.Node) error {
			vs, err := p.values(v, k.Value)
			x.axes = append(x.axes, axis{k.Value, vs, k.Line})
			return err
		})
		if err != nil {
			return err
		}
		if len(x.axes) == 0 {
			return p.errf(c.Line, "an exclusion without values would exclude everything")
		}
		p.out = append(p.out, x)
	}
	return nil
}

var seedRange = regexp.MustCompile(`^(\d+)\s*\.\.\s*(\d+)$`)

func (p *parser) seeds(n *yaml.Node) error {
	vs, err := p.values(n, "seeds")
	if err != nil {
		return err
	}
	for _, v := range vs {
		from, to := v, v
		if m := seedRange.FindStringSubmatch(v); m != nil {
			from, to = m[1], m[2]
		}
		a, errA := strconv.ParseUint(from, 10, 64)
		b, errB := strconv.ParseUint(to, 10, 64)
		switch {
		case errA != nil || errB != nil:
			return p.errf(n.Line, "seed %q is no whole number and no range; write [1, 2, 3] or 1..10", v)
		case a == 0:
			return p.errf(n.Line, "seed 0: it stands for the plan's own; seeds begin with 1")
		case a > b:
			return p.errf(n.Line, "seeds %s: the range ends before it begins", v)
		case b-a >= pointsMax:
			return p.errf(n.Line, "seeds %s: more than %d", v, pointsMax)
		}
		for i := range b - a + 1 {
			if slices.Contains(p.s.Seeds, a+i) {
				return p.errf(n.Line, "seed %d is given twice", a+i)
			}
			p.s.Seeds = append(p.s.Seeds, a+i)
		}
	}
	return nil
}

func (p *parser) timeout(n *yaml.Node) error {
	t, err := p.text(n, "timeout")
	if err != nil {
		return err
	}
	if p.s.Timeout, err = time.ParseDuration(t); err != nil || p.s.Timeout < time.Second {
		return p.errf(n.Line, "timeout %q is no time of at least a second; write 90s, 30m or 2h", t)
	}
	return nil
}

func (p *parser) retries(n *yaml.Node) error {
	t, err := p.text(n, "retries")
	if err != nil {
		return err
	}
	if p.s.Retries, err = strconv.Atoi(t); err != nil || p.s.Retries < 0 || p.s.Retries > 10 {
		return p.errf(n.Line, "retries %q is not in 0 to 10", t)
	}
	return nil
}

var sizeForm = regexp.MustCompile(`^([0-9]{1,6})\s*(MiB|GiB|TiB)$`)

func (p *parser) memory(n *yaml.Node) error {
	t, err := p.text(n, "memory")
	if err != nil {
		return err
	}
	m := sizeForm.FindStringSubmatch(t)
	if m == nil {
		return p.errf(n.Line, "memory %q is no size; write 512MiB or 4GiB", t)
	}
	p.s.Memory, _ = strconv.ParseInt(m[1], 10, 64) // six digits fit
	p.s.Memory <<= map[string]int{"MiB": 20, "GiB": 30, "TiB": 40}[m[2]]
	if p.s.Memory < 64<<20 {
		return p.errf(n.Line, "memory %q: less than 64MiB", t)
	}
	return nil
}
