package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/daemon/impair"
	"github.com/metaroce/metaroce/internal/mono"
)

// What reads single values. Each says of a mistake what was expected and leaves *to alone then.

func (p *parser) scalar(n *yaml.Node, what string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.errf(n, "%s must be a single value", what)
		return "", false
	}
	return n.Value, true
}

func (p *parser) text(n *yaml.Node, what string, to *string) {
	if s, ok := p.scalar(n, what); ok {
		*to = s
	}
}

func (p *parser) seed(n *yaml.Node, to *uint64) {
	if s, ok := p.scalar(n, "seed"); ok {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			p.errf(n, "seed: %q is not a whole number", s)
			return
		}
		*to = v
	}
}

// integer returns a reader of whole numbers from lo to hi.
func (p *parser) integer(what string, lo, hi int, to *int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := p.scalar(n, what)
		if !ok {
			return
		}
		v, err := strconv.Atoi(s)
		if err != nil || v < lo || v > hi {
			p.errf(n, "%s: %q is not a number from %d to %d", what, s, lo, hi)
			return
		}
		*to = v
	}
}

func (p *parser) boolean(what string, to *bool) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var on bool
		if err := n.Decode(&on); err != nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			p.errf(n, "%s: %q is neither true nor false", what, n.Value)
			return
		}
		*to = on
	}
}

// number reads a plain number from lo to hi.
func (p *parser) number(what string, lo, hi float64, to *float64) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := p.scalar(n, what)
		if !ok {
			return
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= lo && v <= hi) {
			p.errf(n, "%s: %q is not a number from %v to %v", what, s, lo, hi)
			return
		}
		*to = v
	}
}

// value reads with one of the parsers of package impair, whose errors say what a value looks like.
func value[T any](p *parser, what string, parse func(string) (T, error), to *T) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := p.scalar(n, what)
		if !ok {
			return
		}
		v, err := parse(s)
		if err != nil {
			p.errf(n, "%s: %v", what, err)
			return
		}
		*to = v
	}
}

func (p *parser) share(what string, to *float64) func(*yaml.Node) {
	return value(p, what, impair.ParseShare, to)
}

func (p *parser) time(what string, to *mono.Duration) func(*yaml.Node) {
	return value(p, what, impair.ParseDuration, to)
}

func (p *parser) rate(what string, to *uint64) func(*yaml.Node) {
	return value(p, what, func(s string) (uint64, error) {
		v, err := impair.ParseRate(s)
		if err == nil && v == 0 {
			return 0, fmt.Errorf("%q: a link needs a rate such as 100Gbit", s)
		}
		return v, err
	}, to)
}

func (p *parser) size(what string, to *int64) func(*yaml.Node) {
	return value(p, what, func(s string) (int64, error) {
		v, err := impair.ParseSize(s)
		if err == nil && v == 0 {
			return 0, fmt.Errorf("%q: a message needs a size such as 64KiB", s)
		}
		return int64(v), err
	}, to)
}

// oneOf returns a reader of one of some words.
func oneOf[T ~string](p *parser, what string, to *T, allowed ...T) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := p.scalar(n, what)
		if !ok {
			return
		}
		var known []string
		for _, a := range allowed {
			if T(s) == a {
				*to = a
				return
			}
			known = append(known, string(a))
		}
		p.unknown(n, what, s, "", known)
	}
}

// bytes reads a size of a queue: bytes, or full packets ("29 pkt"), or bandwidth-delay products ("0.2 BDP"), which are
// rounded up to whole packets as switches count them in htsim.
func (p *parser) bytes(what string, t *Topology, to *int) func(*yaml.Node) {
	return value(p, what, func(s string) (int, error) {
		for _, u := range []struct {
			name string
			size float64
		}{{"BDP", float64(t.BDP())}, {"pkt", float64(t.WireBytes())}} {
			num, ok := strings.CutSuffix(s, u.name)
			if !ok {
				continue
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
			if err != nil || !(v >= 0 && v*u.size <= math.MaxInt32) {
				return 0, fmt.Errorf("%q is not a multiple such as \"0.5 %s\"", s, u.name)
			}
			wire := float64(t.WireBytes())
			return int(math.Ceil(v*u.size/wire)) * t.WireBytes(), nil
		}
		if s == "none" {
			return 0, nil
		}
		v, err := impair.ParseSize(s)
		if err != nil {
			return 0, fmt.Errorf("%q is not a size such as 256KiB, \"29 pkt\" or \"1 BDP\"", s)
		}
		if v > math.MaxInt32 {
			return 0, fmt.Errorf("%q is over 2 GiB", s)
		}
		return v, nil
	}, to)
}

// hosts reads a list of hosts: numbers and ranges such as 8-39 or 0-62/2.
func (p *parser) hosts(t *Topology, to *[]int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		list := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			list = n.Content
		}
		var all []int
		seen := make([]bool, t.Hosts)
		for _, e := range list {
			s, ok := p.scalar(follow(e), "hosts")
			if !ok {
				return
			}
			first, last, step, err := hostRange(s)
			if err != nil || first > last || last >= t.Hosts {
				p.errf(e, "hosts: %q is not a host from 0 to %d or a range such as 0-31 or 0-62/2", s, t.Hosts-1)
				return
			}
			for h := first; h <= last; h += min(step, t.Hosts) { // a step beyond all hosts is one that ends it
				if seen[h] {
					p.errf(e, "hosts: host %d is named twice", h)
					return
				}
				seen[h] = true
				all = append(all, h)
			}
		}
		if len(all) < 2 {
			p.errf(n, "hosts: at least two hosts take part")
			return
		}
		*to = all
	}
}

func hostRange(s string) (first, last, step int, err error) {
	span, by, stepped := strings.Cut(s, "/")
	from, to, ranged := strings.Cut(span, "-")
	if first, err = strconv.Atoi(strings.TrimSpace(from)); err != nil {
		return
	}
	last, step = first, 1
	if ranged {
		if last, err = strconv.Atoi(strings.TrimSpace(to)); err != nil {
			return
		}
	}
	if stepped {
		if step, err = strconv.Atoi(by); err == nil && step < 1 {
			err = strconv.ErrRange
		}
	}
	return
}
