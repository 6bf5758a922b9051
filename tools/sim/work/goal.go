package work

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// A GOAL schedule in text (Hoefler, Siebert, Lumsdaine 2009; LogGOPSim's txt2bin):
//
//	num_ranks 2
//	rank 0 {
//	l1: calc 100
//	l2: send 8b to 1 tag 0
//	l2 requires l1
//	}
//	rank 1 { l1: recv 8b from 0 tag 0 }
//
// Statements end with a line or a semicolon. Sends are matched with receives by (from, to, tag) in order. What requires a
// send waits for its acknowledgement, what requires a receive for the message (and for all that the receive requires);
// irequires waits for the same as the other operation does. Sends do not wait for their receives to be posted, cpu and nic
// are not followed: only requirements put calculations in order.

type goalKind uint8

const (
	goalSend goalKind = iota
	goalRecv
	goalCalc
)

type goalOp struct {
	kind      goalKind
	rank      int32
	peer, tag int32
	size      int64 // bytes; calc: ns
	line      int32
	deps      int32 // number of requirements
	begin     bool  // another operation irequires it
	match     int32 // send: its receive; receive: its send
	msg       int32 // send, calc: its message; recv: its join, or -1
	startMsg  int32 // gathers what it requires, or -1
}

// goalDep is op requires on; start: irequires.
type goalDep struct {
	op, on int32
	start  bool
}

type goalReader struct {
	b      *builder
	ops    []goalOp
	deps   []goalDep
	ranks  int
	rank   int32 // in whose braces we are, or -1
	seen   []bool
	labels map[string]int32 // of the rank
	later  []goalRef
	cpu    bool
}

// goalRef is a requirement whose labels are looked up at the end of its rank.
type goalRef struct {
	op, on string
	start  bool
	line   int32
}

func (r *goalReader) errf(line int32, format string, args ...any) error {
	return &plan.Error{File: r.b.w.File, Line: int(line), Msg: fmt.Sprintf(format, args...)}
}

func (b *builder) goal(text []byte) error {
	r := &goalReader{b: b, rank: -1, labels: map[string]int32{}}
	if err := r.read(string(text)); err != nil {
		return err
	}
	if err := r.pair(); err != nil {
		return err
	}
	return r.build()
}

// read cuts the text into statements.
func (r *goalReader) read(text string) error {
	line := int32(1)
	var words []string
	flush := func() error {
		w := words
		words = words[:0]
		return r.statement(line, w)
	}
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case strings.HasPrefix(text[i:], "//"):
			for i < len(text) && text[i] != '\n' {
				i++
			}
			continue
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i:], "*/")
			if end < 0 {
				return r.errf(line, "the comment does not end")
			}
			line += int32(strings.Count(text[i:i+end], "\n"))
			i += end + 2
			continue
		case c == '\n' || c == ';':
			if err := flush(); err != nil {
				return err
			}
			if c == '\n' {
				line++
			}
		case c == '}':
			if err := flush(); err != nil {
				return err
			}
			if err := r.endRank(line); err != nil {
				return err
			}
		case c == '{':
			if err := r.beginRank(line, words); err != nil {
				return err
			}
			words = words[:0]
		case c == ':':
			words = append(words, ":")
		case c == ' ' || c == '\t' || c == '\r':
		default:
			end := i
			for end < len(text) && !strings.ContainsRune(" \t\r\n;:{}", rune(text[end])) {
				end++
			}
			words = append(words, text[i:end])
			i = end
			continue
		}
		i++
	}
	if err := flush(); err != nil {
		return err
	}
	if r.rank >= 0 {
		return r.errf(line, "rank %d does not end; a } is missing", r.rank)
	}
	if r.ranks == 0 {
		return r.errf(1, "num_ranks is missing")
	}
	return nil
}

func (r *goalReader) beginRank(line int32, words []string) error {
	if len(words) != 2 || words[0] != "rank" {
		return r.errf(line, "a { follows `rank NUMBER`")
	}
	n, err := strconv.Atoi(words[1])
	switch {
	case r.rank >= 0:
		return r.errf(line, "rank %s begins inside of rank %d; a } is missing", words[1], r.rank)
	case r.ranks == 0:
		return r.errf(line, "num_ranks comes before the first rank")
	case err != nil || n < 0 || n >= r.ranks:
		return r.errf(line, "rank %q: ranks are 0 to %d", words[1], r.ranks-1)
	case r.seen[n]:
		return r.errf(line, "rank %d is there already", n)
	}
	r.seen[n] = true
	r.rank = int32(n)
	return nil
}

func (r *goalReader) endRank(line int32) error {
	if r.rank < 0 {
		return r.errf(line, "a } without a rank")
	}
	for _, ref := range r.later {
		op, ok := r.labels[ref.op]
		on, ok2 := r.labels[ref.on]
		switch {
		case !ok:
			return r.errf(ref.line, "rank %d has no operation %q", r.rank, ref.op)
		case !ok2:
			return r.errf(ref.line, "rank %d has no operation %q", r.rank, ref.on)
		case op == on:
			return r.errf(ref.line, "%q requires itself", ref.op)
		}
		r.deps = append(r.deps, goalDep{op, on, ref.start})
		r.ops[op].deps++
		r.ops[on].begin = r.ops[on].begin || ref.start
	}
	clear(r.labels)
	r.later = r.later[:0]
	r.rank = -1
	return nil
}

func (r *goalReader) statement(line int32, words []string) error {
	if len(words) == 0 {
		return nil
	}
	if words[0] == "num_ranks" {
		n := 0
		if len(words) == 2 {
			n, _ = strconv.Atoi(words[1])
		}
		switch {
		case n < 1:
			return r.errf(line, "num_ranks needs a number behind it")
		case r.ranks != 0:
			return r.errf(line, "num_ranks is there already")
		case n > r.b.n:
			return r.errf(line, "%d ranks, but only %d hosts of the plan take part", n, r.b.n)
		}
		r.ranks, r.seen = n, make([]bool, n)
		return nil
	}
	if r.rank < 0 {
		return r.errf(line, "%q outside of a rank", words[0])
	}
	if len(words) == 3 && (words[1] == "requires" || words[1] == "irequires") {
		r.later = append(r.later, goalRef{strings.Clone(words[0]), strings.Clone(words[2]), words[1] == "irequires", line})
		return nil
	}
	label := ""
	if len(words) > 2 && words[1] == ":" {
		label, words = words[0], words[2:]
	}
	op, err := r.operation(line, words)
	if err != nil {
		return err
	}
	if label != "" {
		if at, ok := r.labels[label]; ok {
			return r.errf(line, "%q is there already, on line %d", label, r.ops[at].line)
		}
		r.labels[strings.Clone(label)] = int32(len(r.ops))
	}
	r.ops = append(r.ops, op)
	if len(r.ops) > MaxMessages {
		return r.errf(line, "over %d operations", MaxMessages)
	}
	return nil
}

const goalForms = "`send 8b to 1 tag 0`, `recv 8b from 0 tag 0`, `calc 100`, `l2 requires l1` or `l2 irequires l1`"

// operation reads "send 8b to 1 tag 0 cpu 0 nic 0", "recv 8b from 1 tag 0 …" or "calc 100 cpu 0".
func (r *goalReader) operation(line int32, words []string) (op goalOp, err error) {
	op = goalOp{rank: r.rank, line: line, match: -1, msg: -1, startMsg: -1}
	bad := func() (goalOp, error) {
		return op, r.errf(line, "%q is not an operation such as %s", strings.Join(words, " "), goalForms)
	}
	var rest []string
	switch {
	case len(words) >= 2 && words[0] == "calc":
		op.kind = goalCalc
		if op.size, err = strconv.ParseInt(words[1], 10, 64); err != nil || op.size < 0 || op.size > 1<<60 {
			return bad()
		}
		rest = words[2:]
	case len(words) >= 4 && (words[0] == "send" || words[0] == "recv"):
		way := "to"
		if words[0] == "recv" {
			op.kind, way = goalRecv, "from"
		}
		num, ok := strings.CutSuffix(words[1], "b")
		rest = words[2:]
		if !ok && rest[0] == "b" {
			rest, ok = rest[1:], true
		}
		op.size, err = strconv.ParseInt(num, 10, 64)
		if !ok || err != nil || op.size < 0 || op.size > 1<<40 || len(rest) < 2 || rest[0] != way {
			return bad()
		}
		if rest[1] == "-1" {
			return op, r.errf(line, "receives from any rank are not read: who sends must be written down")
		}
		peer, err := strconv.Atoi(rest[1])
		if err != nil || peer < 0 || peer >= r.ranks {
			return op, r.errf(line, "rank %q: ranks are 0 to %d", rest[1], r.ranks-1)
		}
		if op.peer = int32(peer); op.peer == r.rank {
			return op, r.errf(line, "rank %d sends to itself; write it as calc", r.rank)
		}
		rest = rest[2:]
	default:
		return bad()
	}
	for ; len(rest) >= 2; rest = rest[2:] {
		v, err := strconv.ParseInt(rest[1], 10, 32)
		switch {
		case rest[0] == "tag" && rest[1] == "-1":
			return op, r.errf(line, "receives of any tag are not read")
		case err != nil || v < 0:
			return bad()
		case rest[0] == "tag" && op.kind != goalCalc:
			op.tag = int32(v)
		case rest[0] == "cpu" || rest[0] == "nic":
			r.cpu = r.cpu || v != 0
		default:
			return bad()
		}
	}
	if len(rest) > 0 {
		return bad()
	}
	return op, nil
}

// pair finds each send's receive.
func (r *goalReader) pair() error {
	var sends, recvs []int32
	for i := range r.ops {
		switch r.ops[i].kind {
		case goalSend:
			sends = append(sends, int32(i))
		case goalRecv:
			recvs = append(recvs, int32(i))
		case goalCalc:
		}
	}
	key := func(i int32) (from, to, tag int32) {
		if op := &r.ops[i]; op.kind == goalSend {
			return op.rank, op.peer, op.tag
		}
		return r.ops[i].peer, r.ops[i].rank, r.ops[i].tag
	}
	order := func(a, b int32) int {
		f1, t1, g1 := key(a)
		f2, t2, g2 := key(b)
		return cmp.Or(cmp.Compare(f1, f2), cmp.Compare(t1, t2), cmp.Compare(g1, g2))
	}
	slices.SortStableFunc(sends, order)
	slices.SortStableFunc(recvs, order)
	for i := range max(len(sends), len(recvs)) {
		switch {
		case i >= len(recvs) || i < len(sends) && order(sends[i], recvs[i]) < 0:
			s := &r.ops[sends[i]]
			return r.errf(s.line, "rank %d sends to %d with tag %d, but that has no receive for it", s.rank, s.peer, s.tag)
		case i >= len(sends) || order(sends[i], recvs[i]) > 0:
			v := &r.ops[recvs[i]]
			return r.errf(v.line, "rank %d receives from %d with tag %d, but that does not send it", v.rank, v.peer, v.tag)
		}
		s, v := &r.ops[sends[i]], &r.ops[recvs[i]]
		if s.size > v.size {
			return r.errf(v.line, "%d bytes are received, but rank %d sends %d (line %d)", v.size, s.rank, s.size, s.line)
		}
		s.match, v.match = recvs[i], sends[i]
	}
	return nil
}

// number gives each operation its messages: a send and a calculation have one; a receive that requires something has a
// calculation of no time that joins message and requirements; so has an operation whose beginning others wait for.
func (r *goalReader) number() int32 {
	next := r.b.first
	for i := range r.ops {
		op := &r.ops[i]
		if op.begin && op.deps > 0 {
			op.startMsg = next
			next++
		}
		if op.kind != goalRecv || op.deps > 0 {
			op.msg = next
			next++
		}
	}
	return next
}

// done is what a requirement of op waits for.
func (r *goalReader) done(i int32) Edge {
	op := &r.ops[i]
	switch {
	case op.kind == goalSend:
		return Edge{op.msg, true}
	case op.msg >= 0:
		return Edge{op.msg, false}
	}
	return Edge{r.ops[op.match].msg, false}
}

func (r *goalReader) build() error {
	b := r.b
	g := b.g
	if r.number() == b.first {
		return r.errf(1, "there are no operations")
	}
	slices.SortStableFunc(r.deps, func(a, b goalDep) int { return cmp.Compare(a.op, b.op) })
	g.lines = append(g.lines, make([]int32, max(0, int(b.first)-len(g.lines)))...)
	deps := r.deps
	var total int64
	var wait []Edge
	put := func(op *goalOp, from, to int32, size int64, wait []Edge) *Message {
		g.lines = append(g.lines, op.line)
		return b.add(int(from), int(to), size, 0, wait...)
	}
	for i := range r.ops {
		op := &r.ops[i]
		wait = wait[:0]
		for ; len(deps) > 0 && deps[0].op == int32(i); deps = deps[1:] {
			on := &r.ops[deps[0].on]
			switch {
			case !deps[0].start:
				wait = append(wait, r.done(deps[0].on))
			case on.startMsg >= 0:
				wait = append(wait, Edge{on.startMsg, false})
			}
		}
		if op.startMsg >= 0 {
			put(op, op.rank, op.rank, 0, wait)
			wait = append(wait[:0], Edge{op.startMsg, false})
		}
		switch {
		case op.kind == goalSend:
			total += op.size
			put(op, op.rank, op.peer, op.size, wait)
		case op.kind == goalCalc:
			put(op, op.rank, op.rank, 0, wait).Start = mono.Time(op.size)
		case op.msg >= 0:
			put(op, op.rank, op.rank, 0, append(wait, Edge{r.ops[op.match].msg, false}))
		}
	}
	grp := &g.Groups[b.group]
	grp.Name, grp.Size, grp.Hosts = b.w.File, total, r.ranks
	if note := fmt.Sprintf("%s:1: cpu and nic are not followed", b.w.File); r.cpu && !slices.Contains(g.Notes, note) {
		g.Notes = append(g.Notes, note)
	}
	return nil
}
