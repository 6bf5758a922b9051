package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/api"
	mgmt "github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/device/hostq"
)

func ptr(n int) *int { return &n }

// peers are the peers of NICs, as scripts see them.
type peers struct {
	NICs []struct {
		Peers []struct {
			ID     string `json:"peer_id"`
			Planes []struct {
				Profile   string `json:"profile"`
				Entropies string `json:"entropies"`
			} `json:"planes"`
		} `json:"peers"`
	} `json:"nics"`
}

// TestMgmtPaths: deny, allow, entropies, probes and profiles, through the socket.
func TestMgmtPaths(t *testing.T) {
	d := start(t, nil)
	a, b := pair(t, d)
	c, err := mgmt.Dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b.RQ.PutRecv(1, b.sge(4096, 4096))
	b.RQ.Ring()
	a.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 3000))
	a.SQ.Ring()
	if e, err := a.poll(); err != nil || e.Status != 0 {
		t.Fatalf("%v %+v", err, e)
	}
	nic := func(cmd string, args, out any) {
		t.Helper()
		if err := c.MgmtNIC(cmd, "a/mr0", args, out); err != nil {
			t.Fatalf("%s %+v: %v", cmd, args, err)
		}
	}
	var ch []api.PathChange
	nic("deny", api.PathArgs{Peer: addrB.String(), Plane: ptr(1), Path: ptr(0)}, &ch)
	if len(ch) != 1 || ch[0].NIC != "a/mr0" || ch[0].Changed != 1 {
		t.Errorf("deny: %+v", ch)
	}
	nic("allow", api.PathArgs{}, &ch)
	if ch[0].Changed != 1 {
		t.Errorf("allow: %+v", ch)
	}
	nic("deny", api.PathArgs{SourcePort: 51000}, &ch)
	nic("entropies", api.EntropyArgs{Mode: "explicit", List: []uint16{50001, 50002}, Plane: ptr(0)}, nil)
	type plane = struct {
		Profile   string `json:"profile"`
		Entropies string `json:"entropies"`
	}
	planes := func() []plane {
		t.Helper()
		var p peers
		nic("paths", nil, &p)
		if len(p.NICs) != 1 || len(p.NICs[0].Peers) != 1 || len(p.NICs[0].Peers[0].ID) != 16 {
			t.Fatalf("%+v", p)
		}
		return p.NICs[0].Peers[0].Planes
	}
	if p := planes(); p[0].Entropies != "explicit" || p[1].Entropies != "automatic" {
		t.Errorf("entropies: %+v", p)
	}
	var pr api.Probe
	nic("probe", api.ProbeArgs{Peer: addrB.String(), Plane: 1, Path: 5, Timeout: 5}, &pr)
	for end := time.Now().Add(10 * time.Second); !pr.Done && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		nic("probe", api.ProbeArgs{ID: pr.ID}, &pr)
	}
	if !pr.Answered || pr.RTT <= 0 || pr.Bytes < 4096 || pr.SourcePort < 0xC000 {
		t.Errorf("probe: %+v", pr)
	}
	var prof []api.Profiles
	nic("profile", api.ProfileArgs{Name: "fixed", Window: 65536}, &prof)
	if prof[0].Name != "fixed" || prof[0].Window != 65536 || len(prof[0].Known) != 3 {
		t.Errorf("profile: %+v", prof)
	}
	if p := planes(); p[1].Profile != "fixed" {
		t.Errorf("profile: %+v", p)
	}
	for _, bad := range []struct {
		cmd  string
		args any
	}{
		{"deny", api.PathArgs{Plane: ptr(7), Path: ptr(0)}}, {"deny", api.PathArgs{Plane: ptr(0), Path: ptr(64)}}, {"deny", api.PathArgs{Plane: ptr(0)}},
		{"deny", api.PathArgs{Peer: "x", Plane: ptr(0), Path: ptr(1)}}, {"deny", api.PathArgs{Peer: "10.9.9.9", Plane: ptr(0), Path: ptr(1)}},
		{"deny", api.PathArgs{SourcePort: 9, Path: ptr(1)}}, {"allow", map[string]any{"pth": 1}}, {"entropies", api.EntropyArgs{Mode: "some"}},
		{"entropies", api.EntropyArgs{Mode: "explicit"}}, {"probe", api.ProbeArgs{}}, {"probe", api.ProbeArgs{ID: 5}},
		{"probe", api.ProbeArgs{Peer: addrB.String(), Plane: 9}}, {"probe", api.ProbeArgs{Peer: addrB.String(), Bytes: 1 << 20}},
		{"profile", api.ProfileArgs{Name: "cubic"}}, {"profile", api.ProfileArgs{Name: "fixed"}},
	} {
		var e *api.Error
		if err := c.MgmtNIC(bad.cmd, "a/mr0", bad.args, nil); !errors.As(err, &e) || e.Code != api.CodeBadRequest && e.Code != api.CodeNoPeer {
			t.Errorf("%s %+v: %v", bad.cmd, bad.args, err)
		}
	}
}

// TestMgmtPathsSome: a peer is a peer of some of the NICs; whatever else a NIC answers is told, although others did it.
func TestMgmtPathsSome(t *testing.T) {
	d := start(t, func(c *Config) { c.NICs[1].Ports = c.NICs[1].Ports[:1] }) // b/mr0 has no plane 1
	pair(t, d)
	c, err := mgmt.Dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for cmd, args := range map[string]any{"deny": api.PathArgs{Plane: ptr(1), Path: ptr(0)}, "allow": api.PathArgs{Plane: ptr(1)},
		"entropies": api.EntropyArgs{Mode: "automatic", Plane: ptr(1)}} {
		var ch []api.PathChange
		if err := c.Mgmt(cmd, args, &ch); err != nil || len(ch) != 2 || ch[0].NIC != "a/mr0" || ch[0].Error != "" || ch[1].NIC != "b/mr0" ||
			!strings.Contains(ch[1].Error, "no such plane") {
			t.Errorf("%s: %v %+v", cmd, err, ch)
		}
	}
	var ch []api.PathChange
	if err := c.Mgmt("deny", api.PathArgs{Peer: addrB.String(), Plane: ptr(0), Path: ptr(0)}, &ch); err != nil || len(ch) != 1 || ch[0].NIC != "a/mr0" {
		t.Errorf("%v %+v", err, ch)
	}
	var prof []api.Profiles
	if err := c.Mgmt("profile", api.ProfileArgs{Name: "polite", Peer: addrA.String()}, &prof); err != nil || len(prof) != 1 || prof[0].NIC != "b/mr0" {
		t.Errorf("%v %+v", err, prof)
	}
	var e *api.Error
	if err := c.Mgmt("deny", api.PathArgs{Plane: ptr(7), Path: ptr(0)}, nil); !errors.As(err, &e) || e.Code != api.CodeBadRequest ||
		!strings.Contains(e.Message, "a/mr0") || !strings.Contains(e.Message, "b/mr0") {
		t.Error(err)
	}
	if err := c.Mgmt("deny", api.PathArgs{Peer: "10.9.9.9", Plane: ptr(0), Path: ptr(0)}, nil); !errors.As(err, &e) || e.Code != api.CodeNoPeer {
		t.Error(err)
	}
}
