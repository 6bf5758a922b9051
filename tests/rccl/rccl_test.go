//go:build live

package rccl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tests/need"
	"github.com/metaroce/metaroce/tools/bed"
	"github.com/metaroce/metaroce/tools/coll"
)

var build = need.Built

func full() bool { return os.Getenv("MR_LIVE") == "full" }

// lab is a lab with as many hosts as a test has ranks.
type lab struct {
	*bed.Bed
	hosts int
}

func up(t *testing.T, o bed.Options) *lab {
	t.Helper()
	o.NoVeth = true
	b, err := bed.New(build(t, "bin/nicemu"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		if b.Failure != nil {
			t.Error(b.Failure)
		}
	})
	return &lab{b, o.Hosts}
}

// run runs a collbench of a rank on each host.
type run struct {
	net     string // default: our plugin
	args    []string
	env     []string
	limit   time.Duration
	started func(rank, pid int)
	begun   func() // rank 0 has its device
}

func (l *lab) run(t *testing.T, r run) ([]coll.Row, *coll.Storm, error) {
	t.Helper()
	if r.net == "" {
		r.net = build(t, "lib/librccl-net.so")
	}
	if r.limit == 0 {
		r.limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), r.limit)
	defer cancel()
	var rows []coll.Row
	var storm *coll.Storm
	err := coll.Run(ctx, coll.Options{
		Rank: build(t, "lib/collbench-rank"), Args: append([]string{"--net", r.net}, r.args...), Ranks: l.hosts,
		Root: fmt.Sprintf("%s:%d", bed.HostA, l.NextPort()), Started: r.started,
		Command: func(ctx context.Context, rank int, program ...string) *exec.Cmd {
			c := l.Command(ctx, bed.Host(rank), program...)
			c.Env = append(c.Env, r.env...)
			return c
		},
		Line: func(head *coll.Head, row *coll.Row, s *coll.Storm, _ json.RawMessage) error {
			if head != nil && r.begun != nil {
				r.begun()
			}
			if row != nil {
				rows = append(rows, *row)
			}
			if s != nil {
				storm = s
			}
			return nil
		},
	})
	if ctx.Err() != nil {
		err = fmt.Errorf("not done within %v: %w", r.limit, err)
	}
	return rows, storm, err
}

// right is what a run must have come to: so many rows, no byte wrong.
func right(t *testing.T, rows []coll.Row, err error, least int) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	if len(rows) < least {
		t.Errorf("%d measurements, at least %d should be there", len(rows), least)
	}
	for _, r := range rows {
		if r.Wrong != 0 || r.Seconds <= 0 {
			t.Errorf("%s of %d bytes: %d values are wrong, %v s", r.Collective, r.Size, r.Wrong, r.Seconds)
		}
	}
}

const all = "all-reduce,all-reduce-tree,all-gather,reduce-scatter,broadcast,all-to-all,send-recv"

// TestCollectives: every collective, every byte checked, with and without loss.
func TestCollectives(t *testing.T) {
	type kind struct {
		ranks int
		loss  string
		wire  string
		args  string
		least int
	}
	kinds := []kind{
		{2, "0%", "mem", "--max 4194304 --factor 16 --iters 3 --colls " + all, 35},
		{4, "1%", "auto", "--max 1048576 --factor 64 --iters 3 --channels 2 --colls " + all, 20},
		{8, "10%", "mem", "--max 131072 --factor 128 --iters 2 --seconds 0.2 --group 4 --colls all-reduce,all-to-all", 6},
		{3, "1%", "mem", "--max 262144 --factor 40 --iters 2 --slice 1024 --type int32 --colls " + all, 20}, // no power of two; many more steps than slots
	}
	if full() {
		kinds = nil
		for _, ranks := range []int{2, 4, 8} {
			for _, loss := range []string{"0%", "1%", "10%"} {
				kinds = append(kinds, kind{ranks, loss, "auto", "--max 67108864 --factor 8 --iters 1 --warmup 0 --colls " + all, 60})
			}
		}
		kinds = append(kinds, kind{16, "1%", "mem", "--max 1048576 --factor 64 --iters 2 --warmup 0 --colls " + all, 20},
			kind{5, "10%", "udp", "--max 1048576 --factor 16 --iters 3 --channels 4 --group 8 --type uint8 --colls " + all, 20})
	}
	for _, k := range kinds {
		t.Run(fmt.Sprintf("%d ranks, loss %s, %s", k.ranks, k.loss, k.wire), func(t *testing.T) {
			l := up(t, bed.Options{Wire: k.wire, Hosts: k.ranks, Impair: "loss: " + k.loss})
			rows, _, err := l.run(t, run{args: strings.Fields(k.args), limit: 10 * time.Minute})
			right(t, rows, err, k.least)
		})
	}
}

// TestWays: older tables, flushes that read back, several QPs, and the socket net that we compare with.
func TestWays(t *testing.T) {
	l := up(t, bed.Options{Wire: "mem", Hosts: 2, Impair: "loss: 1%"})
	args := strings.Fields("--max 1048576 --factor 64 --iters 2 --colls all-reduce,all-to-all")
	for _, w := range []struct {
		name, net string
		args, env []string
	}{
		{"table 8", "", []string{"--table", "8"}, nil},
		{"table 9", "", []string{"--table", "9", "--group", "2"}, nil},
		{"table 10", "", []string{"--table", "10"}, nil},
		{"table 11", "", []string{"--table", "11", "--channels", "2"}, nil},
		{"flush", "", nil, []string{"MR_NET_FLUSH=1"}},
		{"four QPs in turn", "", nil, []string{"MR_NET_QPS=4"}},
		{"four QPs, split", "", []string{"--group", "3"}, []string{"MR_NET_QPS=4", "MR_NET_SPLIT=1"}},
		{"sockets", "socket", nil, nil},
	} {
		t.Run(w.name, func(t *testing.T) {
			rows, _, err := l.run(t, run{net: w.net, args: append(append([]string{}, args...), w.args...), env: w.env})
			right(t, rows, err, 8)
		})
	}
}

// TestCommand: mroce collbench on a lab that is up, with more ranks than hosts, and on one of its own; the table is nccl-tests'.
func TestCommand(t *testing.T) {
	l := up(t, bed.Options{Wire: "mem", Hosts: 2})
	mroce := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, build(t, "bin/mroce"), append([]string{"collbench", "--max", "4KiB", "--factor", "8", "--iters", "2"}, args...)...)
		c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+l.Dir())
		out, err := c.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{{"--lab", "bench", "--ranks", "3", "all-to-all", "broadcast"}, {"--wire", "mem", "--planes", "2", "--ranks", "2", "--loss", "1%", "all-reduce"}} {
		out, err := mroce(args...)
		rows := 0
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 11 && f[8] == "0" && f[9] == "#" {
				rows++
			}
		}
		if err != nil || rows < 4 || !strings.Contains(out, "# Out of bounds values : 0 OK") {
			t.Errorf("mroce collbench %s: %d rows, %v\n%s", strings.Join(args, " "), rows, err, out)
		}
	}
	out, err := mroce("--lab", "nosuch")
	if err == nil || !strings.Contains(out, "no lab \"nosuch\" is up") {
		t.Errorf("a lab that is not there: %v %s", err, out)
	}
	out, err = mroce("--here") // the daemon is there, but this machine has both hosts' NICs: a rank each
	if err != nil || !strings.Contains(out, "0 OK") {
		t.Errorf("--here: %v %s", err, out)
	}
}

// long is a run that lasts until something ends it: one size, over and over.
func long(colls string, iters int) []string {
	return strings.Fields(fmt.Sprintf("--min 262144 --max 262144 --warmup 0 --iters %d --colls %s", iters, colls))
}

// inTheMiddle is when ranks have connected and exchange data.
const inTheMiddle = 2 * time.Second

// later does something while a run goes on; never after the test.
func later(t *testing.T, after time.Duration, what func()) {
	timer := time.AfterFunc(after, what)
	t.Cleanup(func() { timer.Stop() })
}

// TestPlanePulled: a plane goes away in the middle and comes back; no rank notices.
func TestPlanePulled(t *testing.T) {
	l := up(t, bed.Options{Wire: "mem", Hosts: 4})
	var pulled atomic.Int32
	plane := func(how string) {
		if err := l.Nicemu("lab", "plane", "2", how); err != nil {
			t.Error(err)
			return
		}
		pulled.Add(1)
	}
	begun := func() {
		later(t, 1500*time.Millisecond, func() { plane("down") })
		later(t, 3*time.Second, func() { plane("up") })
	}
	args := strings.Fields("--min 65536 --max 2097152 --factor 1.4 --warmup 1 --iters 100000 --seconds 0.5 --colls all-reduce")
	rows, _, err := l.run(t, run{args: args, begun: begun})
	right(t, rows, err, 10)
	if pulled.Load() != 2 {
		t.Errorf("the collective was over before the plane went and came back: %d", pulled.Load())
	}
}

// TestKilledRank: kill -9 of a rank in the middle. Every other one gets an error within 5 s, the library's code for it, and
// the daemon keeps nothing of theirs.
func TestKilledRank(t *testing.T) {
	for _, colls := range []string{"all-reduce", "all-to-all"} {
		t.Run(colls, func(t *testing.T) {
			l := up(t, bed.Options{Wire: "mem", Hosts: 4})
			before := l.objects(t)
			pids := make([]atomic.Int64, 4)
			var at atomic.Int64
			kill := func() {
				at.Store(time.Now().UnixNano())
				if pid := int(pids[2].Load()); pid <= 1 || syscall.Kill(pid, syscall.SIGKILL) != nil { // exec keeps the number
					t.Errorf("rank 2 (process %d) was not there to be killed", pid)
				}
			}
			_, _, err := l.run(t, run{args: long(colls, 1000000), started: func(rank, pid int) { pids[rank].Store(int64(pid)) },
				begun: func() { later(t, inTheMiddle, kill) }})
			took := time.Since(time.Unix(0, at.Load()))
			if err == nil || at.Load() == 0 {
				t.Fatalf("the ranks ended by themselves: %v", err)
			}
			if took > 5*time.Second {
				t.Errorf("it took %v until all ranks had their error", took)
			}
			t.Logf("after %v:\n%v", took.Round(time.Millisecond), err)
			for _, r := range []int{0, 1, 3} {
				if !strings.Contains(err.Error(), "remote error") || !strings.Contains(err.Error(), fmt.Sprintf("rank %d: ", r)) {
					t.Errorf("rank %d did not say that a peer failed", r)
				}
			}
			l.freed(t, before)
			rows, _, err := l.run(t, run{args: long("all-reduce", 3)})
			right(t, rows, err, 1)
		})
	}
}

// TestDaemonGone: the NIC of one host disappears under its rank. All ranks end with a code and a line, none by a signal.
func TestDaemonGone(t *testing.T) {
	l := up(t, bed.Options{Wire: "udp", Hosts: 3, Flags: []string{"--daemon-per-host"}})
	pid := l.daemon(t, "b")
	var at atomic.Int64
	kill := func() {
		at.Store(time.Now().UnixNano())
		if pid <= 1 || syscall.Kill(pid, syscall.SIGKILL) != nil {
			t.Errorf("no daemon %d to kill", pid)
		}
	}
	_, _, err := l.run(t, run{args: long("all-reduce", 1000000), begun: func() { later(t, inTheMiddle, kill) }})
	if err == nil {
		t.Fatal("the ranks ended well")
	}
	t.Logf("after %v:\n%v", time.Since(time.Unix(0, at.Load())), err)
	for r, say := range []string{"remote error", "system error", "remote error"} {
		if !strings.Contains(err.Error(), fmt.Sprintf("rank %d: ", r)) || !strings.Contains(err.Error(), say) {
			t.Errorf("rank %d did not say %q", r, say)
		}
	}
	for _, bad := range []string{"signal", "segmentation", "not done within"} {
		if strings.Contains(err.Error(), bad) {
			t.Errorf("a rank ended by %q", bad)
		}
	}
}

// TestSilence: nothing arrives any more, and no socket says so: the NIC's own timeout ends all ranks.
func TestSilence(t *testing.T) {
	l := up(t, bed.Options{Wire: "mem", Hosts: 3})
	var at atomic.Int64
	cut := func() {
		if err := l.Nicemu("lab", "impair", "loss=100%"); err != nil {
			t.Error(err)
		}
		at.Store(time.Now().UnixNano())
	}
	_, _, err := l.run(t, run{args: long("all-reduce", 1000000), begun: func() { later(t, inTheMiddle, cut) }})
	took := time.Since(time.Unix(0, at.Load()))
	if err == nil || at.Load() == 0 || strings.Contains(err.Error(), "not done within") || took > 9*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	t.Logf("after %v:\n%v", took, err)
	for r := range 3 {
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("rank %d: NET/MetaRoCE", r)) {
			t.Errorf("rank %d said nothing", r)
		}
	}
}

// TestConnections: thousands of connections opened, used and closed, and nothing is left of them.
func TestConnections(t *testing.T) {
	n := 400
	if full() {
		n = 4000
	}
	l := up(t, bed.Options{Wire: "mem", Hosts: 2})
	before := l.objects(t)
	_, storm, err := l.run(t, run{args: []string{"--connections", strconv.Itoa(n)}, limit: 4 * time.Minute})
	if err != nil || storm == nil || storm.Connections != n {
		t.Fatal(storm, err)
	}
	t.Logf("%+v", *storm)
	l.freed(t, before)
}

// objects are the daemon's counts of what programs have made, as text to compare.
func (l *lab) objects(t *testing.T) string {
	t.Helper()
	text, err := l.Ask("status", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var status struct {
		NICs []struct {
			Name    string
			Objects map[string]int
		}
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil || len(status.NICs) != l.hosts {
		t.Fatal(err, text)
	}
	return fmt.Sprint(status.NICs)
}

func (l *lab) freed(t *testing.T, before string) {
	t.Helper()
	now := ""
	for range 50 {
		if now = l.objects(t); now == before {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("left behind:\n%s\nbefore:\n%s", now, before)
}

func (l *lab) daemon(t *testing.T, host string) int {
	t.Helper()
	text, err := l.Ask("lab", "ls", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var lab struct {
		Hosts []struct {
			Name      string
			DaemonPID int `json:"daemon_pid"`
		}
	}
	if err := json.Unmarshal([]byte(text), &lab); err != nil {
		t.Fatal(err, text)
	}
	for _, h := range lab.Hosts {
		if h.Name == host {
			return h.DaemonPID
		}
	}
	t.Fatal("no such host in " + text)
	return 0
}
