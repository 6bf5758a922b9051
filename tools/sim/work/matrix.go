package work

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// An htsim connection matrix: lines of words, in any order after the headers.
//
//	Nodes 64
//	Connections 2
//	Triggers 1
//	0->1 id 1 start 0 size 1048576 send_done_trigger 1   start in picoseconds
//	1->2 id 2 trigger 1 size 1048576
//	trigger id 1 oneshot
//
// A trigger fires when the flow that names it ends: at its sender (send_done_trigger) or receiver (recv_done_trigger). A
// barrier of count n fires when n flows have.

type cmTrigger struct {
	line    int32
	defined bool
	kind    string
	count   int
	by      []Edge  // what fires it
	waiting []int32 // messages that it starts
	wait    []Edge  // what they wait for
}

type cmReader struct {
	b        *builder
	triggers map[int]*cmTrigger
	order    []int // of first mention
	ids      map[int]int32
	header   map[string]int // Nodes, Connections, …
	at       map[string]int32
	prio     bool
	flows    []cmFlow
}

// cmFlow is one connection line.
type cmFlow struct {
	src, dst, id, msg        int
	size, start              int64 // bytes; picoseconds, -1 = none
	trigger, sendDone, recvd int   // 0 = none
	line                     int32
}

func (r *cmReader) errf(line int32, format string, args ...any) error {
	return &plan.Error{File: r.b.w.File, Line: int(line), Msg: fmt.Sprintf(format, args...)}
}

func (b *builder) matrix(text []byte) error {
	r := &cmReader{b: b, triggers: map[int]*cmTrigger{}, ids: map[int]int32{}, header: map[string]int{}, at: map[string]int32{}}
	line := int32(0)
	for s := range strings.Lines(string(text)) {
		line++
		if err := r.line(line, strings.Fields(s)); err != nil {
			return err
		}
	}
	if err := r.check(); err != nil {
		return err
	}
	return r.build()
}

func (r *cmReader) line(line int32, words []string) error {
	switch {
	case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		return nil
	case words[0] == "Nodes" || words[0] == "Connections" || words[0] == "Triggers" || words[0] == "Failures":
		if len(words) != 2 {
			return r.errf(line, "%s needs a number behind it", words[0])
		}
		n, err := strconv.Atoi(words[1])
		if err != nil || n < 0 {
			return r.errf(line, "%s: %q is not a number", words[0], words[1])
		}
		r.header[words[0]], r.at[words[0]] = n, line
		if words[0] == "Failures" && n > 0 {
			return r.errf(line, "failures of a connection matrix are not read; write them as events: of the plan, such as {target: link 0/agg1-core4, slow: 4}")
		}
		return nil
	case words[0] == "failure":
		return r.errf(line, "failures of a connection matrix are not read; write them as events: of the plan, such as {target: link 0/agg1-core4, slow: 4}")
	case words[0] == "trigger":
		return r.trigger(line, words[1:])
	case strings.Contains(words[0], "->"):
		return r.flow(line, words)
	}
	return r.errf(line, "unknown word %q; a line begins with Nodes, Connections, Triggers, SRC->DST or trigger", words[0])
}

// pairs reads "word number" pairs; single has the words that stand alone.
func (r *cmReader) pairs(line int32, words []string, single func(string) bool, pair func(word string, v int64) bool) error {
	for i := 0; i < len(words); i++ {
		if single(words[i]) {
			continue
		}
		if i+1 == len(words) {
			return r.errf(line, "%q: a number is missing behind it, or the word is unknown", words[i])
		}
		v, err := strconv.ParseInt(words[i+1], 10, 64)
		if err != nil || v < 0 {
			f, err2 := strconv.ParseFloat(words[i+1], 64)
			if err2 != nil || !(f >= 0 && f < 1<<62) {
				return r.errf(line, "%s: %q is not a number", words[i], words[i+1])
			}
			v = int64(f)
		}
		if !pair(words[i], v) {
			return r.errf(line, "unknown word %q", words[i])
		}
		i++
	}
	return nil
}

func (r *cmReader) trigger(line int32, words []string) error {
	t := cmTrigger{line: line, defined: true}
	id := 0
	err := r.pairs(line, words, func(w string) bool {
		if w == "oneshot" || w == "multishot" || w == "barrier" {
			t.kind = w
			return true
		}
		return false
	}, func(w string, v int64) bool {
		switch w {
		case "id":
			id = int(v)
		case "count":
			t.count = int(v)
		default:
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return err
	case id == 0:
		return r.errf(line, "the trigger has no id; ids begin at 1")
	case t.kind == "":
		return r.errf(line, "trigger %d: say oneshot or barrier", id)
	case t.kind == "multishot":
		return r.errf(line, "trigger %d: multishot triggers are not read; use oneshot triggers or a barrier", id)
	}
	old := r.named(id, line)
	if old.defined {
		return r.errf(line, "trigger %d is there already, on line %d", id, old.line)
	}
	t.by, t.waiting = old.by, old.waiting
	*old = t
	return nil
}

// named returns the trigger of an id.
func (r *cmReader) named(id int, line int32) *cmTrigger {
	t := r.triggers[id]
	if t == nil {
		t = &cmTrigger{line: line}
		r.triggers[id] = t
		r.order = append(r.order, id)
	}
	return t
}

func (r *cmReader) flow(line int32, words []string) error {
	f := cmFlow{start: -1, line: line}
	src, dst, _ := strings.Cut(words[0], "->")
	var err1, err2 error
	f.src, err1 = strconv.Atoi(src)
	f.dst, err2 = strconv.Atoi(dst)
	if err1 != nil || err2 != nil || f.src < 0 || f.dst < 0 {
		return r.errf(line, "%q is not SRC->DST", words[0])
	}
	err := r.pairs(line, words[1:], func(string) bool { return false }, func(w string, v int64) bool {
		switch w {
		case "id":
			f.id = int(v)
		case "msg":
			f.msg = int(v)
		case "start":
			f.start = v
		case "size":
			f.size = v
		case "trigger":
			f.trigger = int(v)
		case "send_done_trigger":
			f.sendDone = int(v)
		case "recv_done_trigger":
			f.recvd = int(v)
		case "prio":
			r.prio = true
		default:
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return err
	case f.src == f.dst:
		return r.errf(line, "host %d sends to itself", f.src)
	case f.size == 0:
		return r.errf(line, "the flow has no size; endless ones are a plan's run: {steady: true}")
	case f.size > 1<<40:
		return r.errf(line, "size: %d bytes are over 1 TiB", f.size)
	case f.start < 0 && f.trigger == 0:
		return r.errf(line, "the flow never starts: give start or trigger")
	case f.start >= 0 && f.trigger != 0:
		return r.errf(line, "both start and trigger; give one")
	}
	// With msg, htsim's connections are used again and again: their id may come more than once.
	if was := r.ids[f.id]; was != 0 && f.id != 0 && f.msg == 0 {
		return r.errf(line, "flow %d is there already, on line %d", f.id, was)
	}
	r.ids[f.id] = line
	r.flows = append(r.flows, f)
	return nil
}

// check looks at the file as a whole.
func (r *cmReader) check() error {
	nodes, ok := r.header["Nodes"]
	if !ok {
		return r.errf(1, "Nodes is missing: the number of hosts")
	}
	if nodes > r.b.n {
		return r.errf(r.at["Nodes"], "%d nodes, but only %d hosts of the plan take part", nodes, r.b.n)
	}
	if c, ok := r.header["Connections"]; ok && c != len(r.flows) {
		return r.errf(r.at["Connections"], "Connections is %d, but there are %d", c, len(r.flows))
	}
	if len(r.flows) == 0 {
		return r.errf(1, "there are no connections")
	}
	defined := 0
	for _, id := range r.order {
		if r.triggers[id].defined {
			defined++
		}
	}
	if c, ok := r.header["Triggers"]; ok && c != defined {
		return r.errf(r.at["Triggers"], "Triggers is %d, but there are %d", c, defined)
	}
	for _, f := range r.flows {
		if f.src >= nodes || f.dst >= nodes {
			return r.errf(f.line, "%d->%d: there are %d nodes, 0 to %d", f.src, f.dst, nodes, nodes-1)
		}
	}
	return nil
}

func (r *cmReader) build() error {
	b := r.b
	g := b.g
	var total int64
	for i, f := range r.flows {
		total += f.size
		msg := b.first + int32(i)
		for _, x := range []struct {
			id    int
			acked bool
		}{{f.sendDone, true}, {f.recvd, false}} {
			if x.id != 0 {
				t := r.named(x.id, f.line)
				t.by = append(t.by, Edge{msg, x.acked})
			}
		}
		if f.trigger != 0 {
			t := r.named(f.trigger, f.line)
			t.waiting = append(t.waiting, msg)
		}
	}
	joins := b.first + int32(len(r.flows)) // barriers that start many: a calculation of no time gathers what fires them
	for _, id := range r.order {
		t := r.triggers[id]
		if err := r.sound(id, t); err != nil {
			return err
		}
		t.wait = t.by
		if len(t.by) > 1 && len(t.waiting) > 1 {
			t.wait = []Edge{{joins, false}}
			joins++
		}
	}
	g.lines = append(g.lines, make([]int32, max(0, int(b.first)-len(g.lines)))...)
	for _, f := range r.flows {
		var wait []Edge
		if f.trigger != 0 {
			wait = r.triggers[f.trigger].wait
		}
		m := b.add(f.src, f.dst, f.size, 0, wait...)
		if f.start > 0 {
			m.Start = mono.Time((f.start + 500) / 1000)
		}
		g.lines = append(g.lines, f.line)
	}
	for _, id := range r.order {
		if t := r.triggers[id]; len(t.by) > 1 && len(t.waiting) > 1 {
			at := r.flows[t.waiting[0]-b.first].src
			b.add(at, at, 0, 0, t.by...)
			g.lines = append(g.lines, t.line)
		}
	}
	grp := &g.Groups[b.group]
	grp.Name, grp.Size, grp.Hosts = b.w.File, total, r.header["Nodes"]
	if note := fmt.Sprintf("%s:1: prio is not followed", b.w.File); r.prio && !slices.Contains(g.Notes, note) {
		g.Notes = append(g.Notes, note)
	}
	return nil
}

// sound checks that a trigger fires once.
func (r *cmReader) sound(id int, t *cmTrigger) error {
	switch {
	case !t.defined:
		return r.errf(t.line, "trigger %d is not defined; add `trigger id %d oneshot`", id, id)
	case len(t.by) == 0 && len(t.waiting) > 0:
		return r.errf(t.line, "trigger %d is never fired: no flow has it as send_done_trigger or recv_done_trigger", id)
	case t.kind == "oneshot" && len(t.by) > 1:
		return r.errf(t.line, "trigger %d is oneshot, but %d flows fire it; use `barrier count %d` to wait for all", id, len(t.by), len(t.by))
	case t.kind == "barrier" && t.count != len(t.by):
		return r.errf(t.line, "trigger %d waits for %d flows, but %d fire it", id, t.count, len(t.by))
	}
	return nil
}
