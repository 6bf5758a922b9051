package view_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/nicemu/view"
)

// TestF37GIDTable: each GID has its type and its interface where they are asked for, and nothing is there behind the last.
func TestF37GIDTable(t *testing.T) {
	s := spec(t)
	s.NICs[0].GIDs = append(s.NICs[0].GIDs, "fd00:0000:0000:0000:0000:0000:0000:0001")
	s.GIDAttrs = true
	tree := view.Tree(s)
	port := "infiniband/mr0/ports/1/"
	for name, want := range map[string]string{
		"gids/0": "0000:0000:0000:0000:0000:ffff:0a00:0001\n", "gids/1": "fd00:0000:0000:0000:0000:0000:0000:0001\n", "gids/2": "",
		"gid_attrs/types/0": "RoCE v2\n", "gid_attrs/types/1": "RoCE v2\n", "gid_attrs/types/2": "",
		"gid_attrs/ndevs/0": "mr0\n", "gid_attrs/ndevs/1": "mr0\n", "gid_attrs/ndevs/2": "",
	} {
		if tree[port+name] != want {
			t.Errorf("%s: %q, want %q", name, tree[port+name], want)
		}
	}
	if got, ok := tree["infiniband/mr1/ports/1/gid_attrs/ndevs/0"]; ok {
		t.Errorf("a NIC without an interface names %q", got)
	}
	// An entry whose address went away.
	s.NICs[0].Port = "a/mr0"
	s.Tell(api.Ports{NICs: []api.Port{{Name: "a/mr0", Up: true, Addrs: []string{"", "fd00::1"}}}}, nil)
	tree = view.Tree(s)
	if tree[port+"gids/0"] != "0000:0000:0000:0000:0000:0000:0000:0000\n" || tree[port+"gid_attrs/types/0"] != "" || tree[port+"gid_attrs/ndevs/1"] != "mr0\n" {
		t.Errorf("an empty entry: %v", tree)
	}
	s.GIDAttrs = false
	for name := range view.Tree(s) {
		if strings.Contains(name, "gid_attrs") {
			t.Errorf("%s was not asked for", name)
		}
	}
}

func TestWrite(t *testing.T) {
	s := spec(t)
	for range 2 { // again over what is there
		if err := view.Write(s.Work, s); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(s.Work, "class/infiniband/mr0/ports/1/state"))
	if err != nil || string(got) != "4: ACTIVE\n" {
		t.Errorf("%q %v", got, err)
	}
	st, err := os.Stat(filepath.Join(s.Work, "dev/infiniband/uverbs1"))
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%v %v", st, err)
	}
}

// TestFiles: what changes is written in place, also when it gets shorter; what is no longer there goes away.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	f, err := view.OpenFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, tree := range []map[string]string{
		{"a/b/c": "999\n", "a/d": "x\n"}, {"a/b/c": "1000\n", "a/d": "x\n"}, {"a/b/c": "1\n"}, {"a/b/c": "1\n", "a/e/f": "new\n"},
	} {
		if err := f.Update(tree); err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		err := filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
			if err == nil && st.Mode().IsRegular() {
				text, e := os.ReadFile(path)
				found[strings.TrimPrefix(path, dir+"/")], err = string(text), e
			}
			return err
		})
		if err != nil || len(found) != len(tree) {
			t.Fatalf("step %d: %v %v", i, found, err)
		}
		for name, text := range tree {
			if found[name] != text {
				t.Errorf("step %d: %s: %q, want %q", i, name, found[name], text)
			}
		}
	}
	// A file that is open goes on to be read.
	r, err := os.Open(filepath.Join(dir, "a/b/c"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := f.Update(map[string]string{"a/b/c": "2\n"}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if n, _ := r.Read(b); string(b[:n]) != "2\n" {
		t.Errorf("an open file shows %q", b[:n])
	}
}

// TestF11Follow: the files follow the NIC; nothing changes before the daemon answers for the first time, and a daemon that goes
// away leaves the port down and the counters as they were.
func TestF11Follow(t *testing.T) {
	s := spec(t)
	s.NICs[0].Port, s.NICs[1].Port = "a/mr0", "a/mr1"
	if err := view.Write(s.Work, s); err != nil {
		t.Fatal(err)
	}
	f, err := view.OpenFiles(s.Class())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	port := filepath.Join(s.Class(), "infiniband/mr0/ports/1")
	shows := func(want string, names ...string) {
		t.Helper()
		var all []string
		for _, n := range names {
			text, err := os.ReadFile(filepath.Join(port, n))
			if err != nil {
				text = []byte("none")
			}
			all = append(all, strings.TrimSpace(string(text)))
		}
		if got := strings.Join(all, " | "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	names := []string{"state", "phys_state", "counters/port_xmit_data", "hw_counters/out_of_sequence", "gids/1", "rate"}
	gone := errors.New("gone")
	up := api.Ports{Version: "2", NICs: []api.Port{{Name: "a/mr1", Up: true}, {Name: "a/mr0", Up: true, Rate: "25 Gb/sec (1X EDR)", Addrs: []string{"10.0.0.1", "10.0.0.9"},
		Counters: map[string]uint64{"port_xmit_data": 77}, HWCounters: map[string]uint64{"out_of_sequence": 3}}}}
	step := 0
	ctx, cancel := context.WithCancel(context.Background())
	view.Follow(ctx, func() (api.Ports, error) {
		step++
		switch step {
		case 1, 2:
			return api.Ports{}, gone
		case 3:
			shows("4: ACTIVE | 5: LinkUp | 0 | 0 | none | 100 Gb/sec (4X EDR)", names...)
			return up, nil
		case 4:
			shows("4: ACTIVE | 5: LinkUp | 77 | 3 | 0000:0000:0000:0000:0000:ffff:0a00:0009 | 25 Gb/sec (1X EDR)", names...)
			return api.Ports{}, gone
		}
		shows("1: DOWN | 3: Disabled | 77 | 3 | 0000:0000:0000:0000:0000:ffff:0a00:0009 | 25 Gb/sec (1X EDR)", names...)
		cancel()
		return api.Ports{}, gone
	}, []*view.Kept{{Spec: s, Files: f}})
	if step != 5 {
		t.Errorf("%d steps", step)
	}
	// A daemon that no longer has the NIC.
	s.Tell(api.Ports{}, nil)
	if !s.NICs[0].Down {
		t.Error("a NIC that is not there is up")
	}
}
