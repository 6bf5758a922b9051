package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
)

// patternKeys are the keys that each pattern takes besides pattern, hosts, start and repeat.
var patternKeys = map[Pattern][]string{
	Permutation: {"size", "mul", "add"},
	Incast:      {"size", "senders", "target"},
	AllToAll:    {"size", "outstanding"},
	RingReduce:  {"size", "acked"},
	TreeReduce:  {"size", "acked", "slice"},
	Halving:     {"size", "acked"},
	AllGather:   {"size", "acked"},
	ReduceScat:  {"size", "acked"},
	Pairs:       {"size"},
	ConnMatrix:  {"file"},
	GOAL:        {"file"},
}

// Patterns in the order in which they are listed.
var patterns = []Pattern{Permutation, Incast, AllToAll, RingReduce, TreeReduce, Halving, AllGather, ReduceScat, Pairs, ConnMatrix, GOAL}

func (p *parser) workload(n *yaml.Node, pl *Plan) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.errf(n, "workload must be a list such as `- {pattern: ring, size: 64MiB}`")
		return
	}
	for _, e := range n.Content {
		w := Work{Repeat: 1, Mul: 1, Slice: 128 << 10, Line: e.Line}
		before := len(p.errs)
		at := p.work(follow(e), pl, &w)
		if len(p.errs) == before {
			p.checkWork(follow(e), pl, &w, at)
		}
		pl.Workload = append(pl.Workload, w)
	}
}

func (p *parser) work(n *yaml.Node, pl *Plan, w *Work) map[string]*yaml.Node {
	hosts := pl.Topology.Hosts
	at := p.mapping(n, "workload", keys{
		"pattern":     oneOf(p, "pattern", &w.Pattern, patterns...),
		"hosts":       p.hosts(&pl.Topology, &w.Hosts),
		"size":        p.size("size", &w.Size),
		"start":       p.time("start", &w.Start),
		"repeat":      p.integer("repeat", 1, MaxRepeat, &w.Repeat),
		"slice":       p.size("slice", &w.Slice),
		"mul":         p.integer("mul", 1, math.MaxInt32, &w.Mul),
		"add":         p.integer("add", 0, math.MaxInt32, &w.Add),
		"senders":     p.integer("senders", 1, hosts-1, &w.Senders),
		"target":      p.integer("target", 0, hosts-1, &w.Target),
		"outstanding": p.integer("outstanding", 0, math.MaxInt32, &w.Outstanding),
		"acked":       p.boolean("acked", &w.Acked),
		"file":        func(v *yaml.Node) { p.text(v, "file", &w.File) },
	})
	if n.Kind != yaml.MappingNode {
		return at
	}
	if at["pattern"] == nil {
		p.errf(n, "this part of the workload needs `pattern:`, one of %s", patternNames())
		return at
	}
	if w.Pattern == "" {
		return at
	}
	takes := append([]string{"pattern", "hosts", "start", "repeat"}, patternKeys[w.Pattern]...)
	for _, k := range sorted(at) {
		if !slices.Contains(takes, k) {
			p.errf(at[k], "%s: means nothing to %s, which takes %s", k, w.Pattern, strings.Join(takes, ", "))
		}
	}
	for _, k := range []string{"size", "file"} {
		if at[k] == nil && slices.Contains(takes, k) {
			p.errf(n, "%s needs `%s:`", w.Pattern, k)
		}
	}
	return at
}

func patternNames() string {
	var s []string
	for _, x := range patterns {
		s = append(s, string(x))
	}
	return strings.Join(s, ", ")
}

func sorted(at map[string]*yaml.Node) []string {
	var s []string
	for k := range at {
		s = append(s, k)
	}
	slices.Sort(s)
	return s
}

// checkWork looks at a part whose keys are right.
func (p *parser) checkWork(n *yaml.Node, pl *Plan, w *Work, at map[string]*yaml.Node) {
	hosts := len(w.Hosts)
	if hosts == 0 {
		hosts = pl.Topology.Hosts
	}
	switch w.Pattern {
	case Permutation:
		if at["add"] == nil {
			p.errf(n, "permutation needs `add:` (and may have `mul:`): host i sends to (mul*i + add) mod %d", hosts)
			return
		}
		if g := gcd(w.Mul, hosts); g != 1 {
			p.errf(at["mul"], "mul: %d and the %d hosts have the divisor %d in common: that is not a permutation", w.Mul, hosts, g)
			return
		}
		for i := range hosts {
			if (int64(w.Mul)*int64(i)+int64(w.Add))%int64(hosts) == int64(i) {
				p.errf(n, "permutation: with mul %d and add %d the host at %d of %d sends to itself; choose another add", w.Mul, w.Add, i, hosts)
				return
			}
		}
	case Incast:
		free := hosts
		if len(w.Hosts) == 0 || slices.Contains(w.Hosts, w.Target) {
			free--
		}
		if at["senders"] == nil {
			w.Senders = free
		}
		if w.Senders > free {
			p.errf(at["senders"], "senders: %d, but only %d hosts are not the target", w.Senders, free)
		}
	case Halving:
		if hosts&(hosts-1) != 0 {
			p.errf(n, "halving: %d hosts are not a power of two; use hosts: to take a part, or ring or tree", hosts)
		}
	case Pairs:
		if hosts%2 != 0 {
			p.errf(n, "pairs: %d hosts do not come in pairs", hosts)
		}
	case AllToAll, RingReduce, TreeReduce, AllGather, ReduceScat, ConnMatrix, GOAL:
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (p *parser) events(n *yaml.Node, pl *Plan) {
	if n == nil {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.errf(n, "events must be a list such as `- {at: 100us, target: plane 1, down: true}`")
		return
	}
	for _, e := range n.Content {
		ev := Event{Line: e.Line}
		p.event(follow(e), pl, &ev)
		pl.Events = append(pl.Events, ev)
	}
	slices.SortStableFunc(pl.Events, func(a, b Event) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
}

func (p *parser) event(n *yaml.Node, pl *Plan, ev *Event) {
	c := &ev.Change
	before := len(p.errs)
	at := p.mapping(n, "the event", keys{
		"at":        p.time("at", &ev.At),
		"for":       p.time("for", &ev.For),
		"target":    func(v *yaml.Node) { p.target(v, pl, &ev.Target) },
		"down":      p.boolean("down", &c.Down),
		"loss":      p.share("loss", &c.Loss),
		"burst":     p.number("burst", 1, 1e6, &c.Burst),
		"data_only": p.boolean("data_only", &c.DataOnly),
		"slow":      p.number("slow", 1, 1e6, &c.Slow),
		"delay":     p.time("delay", &c.Delay),
		"flap":      p.time("flap", &c.Flap),
	})
	if len(p.errs) > before {
		return
	}
	does := c.Down || c.Loss > 0 || at["loss"] != nil || c.Slow > 1 || c.Delay > 0 || c.Flap > 0
	switch {
	case at["target"] == nil:
		p.errf(n, "the event needs `target:`, such as \"plane 1\", \"spine 0/3\" or \"last\"")
	case !does:
		p.errf(n, "the event changes nothing; give down, loss, slow, delay or flap")
	case at["for"] != nil && ev.For == 0:
		p.errf(at["for"], "for: lasts no time; leave it away for good")
	case (at["burst"] != nil || c.DataOnly) && at["loss"] == nil:
		p.errf(n, "burst and data_only say how loss: is; give it")
	case c.Flap == 1:
		p.errf(at["flap"], "flap: half of a nanosecond is no time")
	case c.Down && c.Flap > 0:
		p.errf(n, "down and flap at once; a flap is down half of the time")
	case pl.Transport.Kind == Ideal && c.Loss > 0:
		p.errf(n, "the ideal transport loses nothing; take loss away")
	default:
		if err := (link.Spec{Loss: c.Loss, Burst: c.Burst}).Check(); err != nil {
			p.errf(n, "%s", strings.TrimPrefix(err.Error(), "link: "))
		}
	}
}

func (p *parser) target(n *yaml.Node, pl *Plan, to *string) {
	s, ok := p.scalar(n, "target")
	if !ok {
		return
	}
	if _, err := pl.Topology.Target(s); err != nil {
		p.errf(n, "target: %v", err)
		return
	}
	*to = s
}

func (p *parser) run(n *yaml.Node, pl *Plan) {
	r := &pl.Run
	*r = Run{Until: 10 * mono.Second, Depth: 4, Flows: true}
	if n == nil {
		return
	}
	before := len(p.errs)
	at := p.mapping(n, "run", keys{
		"until":  p.time("until", &r.Until),
		"steady": p.boolean("steady", &r.Steady),
		"warm":   p.time("warm", &r.Warm),
		"depth":  p.integer("depth", 1, 1<<16, &r.Depth),
		"bin":    p.time("bin", &r.Bin),
		"flows": func(v *yaml.Node) {
			if r.All = v.Kind == yaml.ScalarNode && v.Value == "all"; !r.All {
				p.boolean("flows", &r.Flows)(v)
			}
		},
	})
	if len(p.errs) > before {
		return
	}
	if r.Until <= 0 {
		p.errf(at["until"], "until: a run lasts longer than 0")
	}
	for _, k := range []string{"warm", "depth"} {
		if at[k] != nil && !r.Steady {
			p.errf(at[k], "%s: is for steady: true", k)
		}
	}
	if !r.Steady {
		return
	}
	if at["until"] == nil {
		p.errf(n, "a steady run needs `until:`: it does not end by itself")
	}
	if r.Warm >= r.Until {
		p.errf(n, "warm: %v leaves nothing of the %v to measure", r.Warm, r.Until)
	}
	for _, w := range pl.Workload {
		if w.Repeat > 1 {
			p.errf(&yaml.Node{Line: w.Line}, "repeat: steady runs go on by themselves")
		}
		if w.Pattern != Permutation && w.Pattern != Incast && w.Pattern != AllToAll && w.Pattern != Pairs || w.Outstanding > 0 {
			p.errf(&yaml.Node{Line: w.Line}, "steady: %s has an order; only permutation, incast, pairs and all-to-all without outstanding can run on and on",
				w.Pattern)
		}
	}
}

// Describe is the workload in a line, such as "permutation 8 MiB, ring 64 MiB".
func (p *Plan) Describe() string {
	var s []string
	for _, w := range p.Workload {
		s = append(s, strings.TrimSpace(fmt.Sprintf("%s %s%s", w.Pattern, w.File, Bytes(w.Size))))
	}
	return strings.Join(s, ", ")
}

// Bytes prints a size in the largest unit that holds it exactly; "" for 0.
func Bytes(n int64) string {
	if n == 0 {
		return ""
	}
	for _, u := range []struct {
		name  string
		shift int
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if n>>u.shift<<u.shift == n {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
