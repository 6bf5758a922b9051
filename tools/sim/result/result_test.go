package result

import (
	"bytes"
	"encoding/csv"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample is a result with something in each field; its names are a stranger's.
func sample(t *testing.T) *Result {
	t.Helper()
	r := &Result{
		Plan: `evil" <script>alert(1)</script>`, Title: "a, b\nand \x1b[31mred\x00", Seed: 7, Commit: "c0ffee",
		Setup: Setup{Topology: "leaf-spine: 2 leaves of 2 hosts, 2 spines", Hosts: 4, Planes: 2, RateBps: 400e9, MTU: 4096, WireBytes: 4180, RTT: 8.3e-6,
			QueueBytes: 420160, ECNMin: 87360, ECNMax: 336960, Transport: "metaroce", NIC: "engine",
			Workload: "ring 1 MiB", Changes: []string{"plane 1 down", "last loses 1 %"}},
		Summary: Summary{Flows: 3, Done: 2, Errors: 1, Seconds: 40e-6, FCTMin: 20e-6, FCTP50: 20e-6, FCTP99: 31e-6, FCTMax: 31e-6, Goodput: 3.1e11,
			GoodputShare: 0.4, Jain: 0.97, MinMax: 0.8, DataPackets: 600, Retransmits: 4, QueueMax: 90000, Hops: 2400, Events: 7000},
		Groups: []Group{{Name: "ring 1 MiB", Kind: "ring", Size: 1 << 20, Hosts: 4, End: 31e-6, Seconds: 31e-6, AlgBps: 2.7e11, BusBps: 4e11, Done: true},
			{Name: "incast", Kind: "incast", Size: 4096, Hosts: 3}},
		Flows: []Flow{{ID: 0, From: 0, To: 1, Size: 1 << 19, Received: 18e-6, Acked: 20e-6}, {ID: 1, From: 1, To: 2, Size: 1 << 19, Received: 29e-6, Acked: 31e-6},
			{ID: 2, From: 2, To: 3, Group: 1, Size: 4096, Start: 5e-6, Received: -1, Acked: -1, Error: `retries "exceeded"`}},
		Line: []Bin{{At: 0, Goodput: 1e11, PerPlane: []float64{6e10, 5e10}, QueueMax: 5000}, {At: 20e-6, Goodput: 2e11, PerPlane: []float64{9e10, 12e10}, Paused: 2}},
		Links: []Link{{Name: "0/host0>leaf0", Packets: 300, Bytes: 1e6, Use: 0.5}, {Name: "0/leaf0>spine0", Packets: 30, Bytes: 1e5, Use: 0.25},
			{Name: "0/leaf1>spine1", Use: 0.75}, {Name: "1/spine1>leaf0", Plane: 1, Use: 1}, {Name: "1/leaf0>host1", Plane: 1, Use: 0.1, Dropped: 3}},
		Cost: Cost{WallSeconds: 0.5, HopsPerSec: 4800, RSSBytes: 1 << 20, Threads: 1},
	}
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	return r
}

// partial makes an interrupted result of it.
func partial(t *testing.T, r *Result) *Result {
	t.Helper()
	c := *r
	c.Partial, c.Why = true, "interrupted <here>"
	if err := c.Seal(); err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestSeal: the hash is of everything but what the run cost and which program ran it.
func TestSeal(t *testing.T) {
	r := sample(t)
	want := r.Hash
	r.Cost, r.Commit = Cost{WallSeconds: 9}, "other"
	if err := r.Seal(); err != nil || r.Hash != want {
		t.Errorf("cost or commit changed the hash (%v)", err)
	}
	for i, change := range []func(){func() { r.Seed++ }, func() { r.Flows[1].Acked += 1e-9 }, func() { r.Partial = true }, func() { r.Links[0].Bytes++ },
		func() { r.Setup.Changes[0] += "!" }} {
		change()
		was := r.Hash
		if err := r.Seal(); err != nil || r.Hash == was {
			t.Errorf("change %d left the hash (%v)", i, err)
		}
	}
	r.Summary.Jain = math.NaN()
	if r.Seal() == nil {
		t.Error("sealed what JSON cannot say")
	}
}

// TestJSON: what is written is read again; what has been cut, changed or never sealed is not.
func TestJSON(t *testing.T) {
	r := sample(t)
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJSON(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	got.Title = r.Title // what JSON cannot carry is none of a title's business
	if d := cmp.Diff(r, got); d != "" {
		t.Error(d)
	}
	text := b.String()
	for name, bad := range map[string]string{
		"cut": text[:len(text)-20], "edited": strings.Replace(text, `"seed": 7`, `"seed": 8`, 1),
		"made whole": strings.Replace(text, `"partial": false`, `"partial": true`, 1),
		"unsealed":   strings.Replace(text, r.Hash, "", 1), "another thing": `{"nodes": 3}`, "twice": text + text, "nothing": "",
	} {
		if _, err := ReadJSON(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if (&Result{}).WriteJSON(&b) == nil {
		t.Error("wrote a result that is not sealed")
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	five := []float64{15, 20, 35, 40, 50}
	for _, x := range []struct {
		of   []float64
		p    float64
		want float64
	}{
		{five, 0, 15}, {five, 5, 15}, {five, 20, 15}, {five, 20.1, 20}, {five, 30, 20}, {five, 40, 20}, {five, 50, 35}, {five, 100, 50},
		{hundred, 1, 1}, {hundred, 7, 7}, {hundred, 50, 50}, {hundred, 99, 99}, {hundred, 99.1, 100}, {hundred[:1], 50, 1}, {hundred[:1], 99, 1}, {nil, 50, 0},
	} {
		if got := Percentile(x.of, x.p); got != x.want {
			t.Errorf("percentile %g of %d values is %g, want %g", x.p, len(x.of), got, x.want)
		}
	}
	for n := 1; n <= 100; n++ { // the definition, by counting
		for p := 1; p <= 100; p++ {
			v := Percentile(hundred[:n], float64(p))
			if int(v)*100 < p*n || int(v-1)*100 >= p*n {
				t.Fatalf("percentile %d of 1…%d is %g", p, n, v)
			}
		}
	}
}

// TestCSV: headers are golden, every row has as many cells, all of them come back, and rows of a partial result say so.
func TestCSV(t *testing.T) {
	whole := sample(t)
	for _, r := range []*Result{whole, partial(t, whole)} {
		for name, x := range tables(r) {
			var b bytes.Buffer
			if err := x.write(&b); err != nil {
				t.Fatal(err)
			}
			if strings.Count(b.String(), "\r\n") < x.rows+1 {
				t.Errorf("%s: lines do not end with CRLF", name)
			}
			rows, err := csv.NewReader(&b).ReadAll()
			if err != nil || len(rows) != x.rows+1 {
				t.Errorf("%s: %d rows (%v)", name, len(rows), err)
				continue
			}
			if got := strings.Join(rows[0], ","); got != x.header {
				t.Errorf("%s: columns are\n%s\nand were\n%s", name, got, x.header)
			}
			for _, row := range rows[1:] {
				if got := row[column(rows[0], "partial")]; (got == "true") != r.Partial {
					t.Errorf("%s: partial is %s", name, got)
				}
			}
		}
	}
	var b bytes.Buffer
	_ = whole.WriteFlowsCSV(&b)
	rows, _ := csv.NewReader(&b).ReadAll()
	if fct := column(rows[0], "fct_s"); rows[1][fct] != "2e-05" || rows[3][fct] != "" || rows[3][column(rows[0], "error")] != `retries "exceeded"` {
		t.Errorf("flows are %q", rows)
	}
}

type tableCase struct {
	write  func(*bytes.Buffer) error
	rows   int
	header string
}

func tables(r *Result) map[string]tableCase {
	return map[string]tableCase{
		"flows": {func(b *bytes.Buffer) error { return r.WriteFlowsCSV(b) }, 3,
			"id,from,to,group,step,size_bytes,start_s,received_s,acked_s,error,fct_s,partial"},
		"links": {func(b *bytes.Buffer) error { return r.WriteLinksCSV(b) }, 5,
			"name,plane,packets,bytes,use,queue_max_bytes,dropped,marked,trimmed,lost,paused_s,partial"},
		"groups": {func(b *bytes.Buffer) error { return r.WriteGroupsCSV(b) }, 2,
			"name,kind,size_bytes,hosts,start_s,end_s,seconds,algbw_bps,busbw_bps,done,partial"},
		"line": {func(b *bytes.Buffer) error { return r.WriteLineCSV(b) }, 2,
			"at_s,goodput_bps,queue_max_bytes,dropped,paused_ports,plane0_bps,plane1_bps,partial"},
		"summary": {func(b *bytes.Buffer) error { return r.WriteSummaryCSV(b) }, 1,
			"plan,title,seed,partial,why,topology,hosts,planes,rate_bps,mtu,wire_bytes,rtt_s,queue_bytes,ecn_min_bytes,ecn_max_bytes,trim,pfc,transport,nic," +
				"workload,changes,flows,flows_done,flows_failed,virtual_s,fct_min_s,fct_p50_s,fct_p99_s,fct_max_s,goodput_bps,goodput_share,jain,min_max," +
				"data_packets,retransmissions,dropped_queue,lost_on_wire,trimmed,marked,pause_frames,paused_s,queue_max_bytes,hops,events,hash"},
	}
}

func column(header []string, name string) int {
	for i, h := range header {
		if h == name {
			return i
		}
	}
	return len(header)
}

// TestText: nothing of a stranger's text steers the terminal, a partial result says so at both ends, and the last line has
// what the run cost.
func TestText(t *testing.T) {
	r := sample(t)
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"group       hosts  size(B)  time(us)  algbw(GB/s)  busbw(GB/s)\n",
		"ring 1 MiB      4  1048576     31.00        33.75        50.00\n",
		"incast          3     4096  not done            -            -\n", "min(us)  p50(us)  p99(us)  max(us)  goodput(Gbit/s)",
		"  20.00    20.00    31.00    31.00           310.00", "dropped  lost  trimmed  marked",
		"7000 events, 2400 hops, 5 thousand hops/s; 0.50 s with building and connecting\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.ContainsAny(text, "\x1b\x00") || strings.Contains(text, "PARTIAL") {
		t.Errorf("%q", text)
	}
	b.Reset()
	_ = partial(t, r).Text(&b)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if !strings.HasPrefix(lines[0], "PARTIAL: interrupted") || !strings.HasPrefix(lines[len(lines)-2], "PARTIAL: ") ||
		!strings.Contains(lines[len(lines)-1], "hops/s") {
		t.Errorf("a partial result says\n%s", b.String())
	}
	_ = (&Result{}).Text(&b) // nothing at all is no reason to panic
}

// TestDocumented: each field of the JSON stands in docs/sim.md.
func TestDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/sim.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(x reflect.Type) {
		for x.Kind() == reflect.Slice {
			x = x.Elem()
		}
		if x.Kind() != reflect.Struct || seen[x] {
			return
		}
		seen[x] = true
		for i := range x.NumField() {
			name, _, _ := strings.Cut(x.Field(i).Tag.Get("json"), ",")
			if !bytes.Contains(doc, []byte("`"+name+"`")) {
				t.Errorf("docs/sim.md does not say what `%s` of %s is", name, x.Name())
			}
			walk(x.Field(i).Type)
		}
	}
	walk(reflect.TypeFor[Result]())
}
