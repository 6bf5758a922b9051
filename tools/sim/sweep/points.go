package sweep

import (
	"slices"
	"strings"

	"github.com/metaroce/metaroce/nicemu/labfile"
)

// expand makes the points: the product of the grid, then the list, each with every seed, without what is excluded.
func (p *parser) expand() error {
	total := len(p.s.Seeds)
	if len(p.grid) > 0 || len(p.list) > 0 {
		n := 0
		if len(p.grid) > 0 {
			n = 1
		}
		for _, a := range p.grid {
			n *= len(a.values)
			if n > pointsMax {
				break
			}
		}
		total *= n + len(p.list)
	}
	if total > pointsMax {
		return p.errf(p.at["grid"], "the sweep has more than %d points", pointsMax)
	}
	var all []Point
	if len(p.grid) > 0 {
		all = product(p.grid)
	}
	all = append(all, p.list...)
	if len(all) == 0 {
		all = []Point{{Line: p.at["seeds"]}} // only seeds vary
	}
	if err := p.checkExclusions(all); err != nil {
		return err
	}
	seen := map[string]int{}
	used := make([]bool, len(p.out))
	for _, pt := range all {
		slices.SortStableFunc(pt.Set, func(a, b Value) int { return slices.Index(p.s.Keys, a.Key) - slices.Index(p.s.Keys, b.Key) })
		for _, seed := range p.s.Seeds {
			q := Point{Set: pt.Set, Seed: seed, Line: pt.Line}
			if x := p.excluded(q); x >= 0 {
				used[x] = true
				continue
			}
			if line := seen[q.canonical()]; line > 0 {
				return p.errf(pt.Line, "this point is there already, from line %d", line)
			}
			seen[q.canonical()] = max(pt.Line, 1)
			p.s.Points = append(p.s.Points, q)
		}
	}
	for i, x := range p.out {
		if !used[i] {
			return p.errf(x.line, "this excludes nothing: no point has all these values, or one before has them all")
		}
	}
	if len(p.s.Points) == 0 {
		return p.errf(p.at["exclude"], "everything is excluded")
	}
	p.s.nameAll()
	return nil
}

// product of the axes, the last one fastest.
func product(axes []axis) []Point {
	all := []Point{{Line: axes[0].line}}
	for _, a := range axes {
		var next []Point
		for _, pt := range all {
			for _, v := range a.values {
				next = append(next, Point{Set: append(slices.Clone(pt.Set), Value{a.key, v}), Line: pt.Line})
			}
		}
		all = next
	}
	return all
}

// excluded returns the first exclusion that the point falls under, -1 for none.
func (p *parser) excluded(pt Point) int {
	return slices.IndexFunc(p.out, func(x exclusion) bool {
		for _, a := range x.axes {
			if v, is := pt.get(a.key); !is || !slices.Contains(a.values, v) {
				return false
			}
		}
		return true
	})
}

// checkExclusions finds slips: a key that does not vary, a value that no point has.
func (p *parser) checkExclusions(all []Point) error {
	for _, x := range p.out {
		for _, a := range x.axes {
			known := slices.Concat(p.s.Keys, []string{"seed"})
			if !slices.Contains(known, a.key) {
				if near := labfile.Nearest(a.key, known); near != "" {
					return p.errf(a.line, "%q does not vary; did you mean %q?", a.key, near)
				}
				return p.errf(a.line, "%q does not vary; what varies: %s", a.key, strings.Join(known, ", "))
			}
			var have []string
			if a.key == "seed" {
				for _, s := range p.s.Seeds {
					v, _ := Point{Seed: s}.get("seed")
					have = append(have, v)
				}
			}
			for _, pt := range all {
				if v, is := pt.get(a.key); is && a.key != "seed" && !slices.Contains(have, v) {
					have = append(have, v)
				}
			}
			for _, v := range a.values {
				if !slices.Contains(have, v) {
					if near := labfile.Nearest(v, have); near != "" {
						return p.errf(a.line, "no point has %s: %s; did you mean %q?", a.key, v, near)
					}
					return p.errf(a.line, "no point has %s: %s; there are %s", a.key, v, strings.Join(have[:min(len(have), 20)], ", "))
				}
			}
		}
	}
	return nil
}
