//go:build live

package live

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sockets are the worlds that sockets over RDMA are tried in: both transports, with loss.
var sockets = []struct{ name, wire, extra, impair string }{
	{"tap", "tap", "", "  - {loss: 0.5%}\n"}, {"udp", "udp", "", ""}, {"rocev2", "mem", "transport: rocev2\n", ""},
}

// TestRsockets: rdma-core's programs for its sockets over RDMA, unchanged.
func TestRsockets(t *testing.T) {
	needProgram(t, "rstream", "riostream", "rcopy", "udpong")
	for _, c := range sockets {
		t.Run(c.name, func(t *testing.T) {
			l := up(t, spec{wire: c.wire, extra: c.extra, impair: c.impair})
			for _, args := range [][]string{
				{"rstream", "-T", "b", "-T", "v", "-S", "65536", "-C", "20", "-I", "20"}, {"rstream", "-T", "n", "-T", "v", "-C", "50", "-I", "20"},
				{"rstream", "-T", "a", "-C", "50", "-I", "20"}, {"riostream", "-T", "b", "-T", "v", "-S", "20000", "-C", "5", "-I", "50"},
			} {
				l.rserver(t, args)
			}
			l.rcopy(t)
			if c.impair == "" { // it waits for ever for a datagram that is lost
				l.udpong(t)
			}
		})
	}
}

// rserver runs a program of rdmacm-utils as server on a and as client on b. Nothing of the kernel shows that the server
// listens, so a client that came too early comes again.
func (l *lab) rserver(t *testing.T, args []string) {
	t.Helper()
	p := port()
	s := l.start(t, 30*time.Second, "a", append(args, "-b", addrOf["a"], "-p", p)...)
	c := l.start(t, 30*time.Second, "b", "sh", "-c", again(strings.Join(append(args, "-s", addrOf["a"], "-p", p), " ")))
	c.wait(t)
	if t.Failed() {
		s.cmd.Process.Signal(sigterm)
	}
	s.wait(t)
}

// again wraps a client that gives up when the server does not listen yet.
func again(client string) string {
	return "i=0; until " + client + "; do i=$((i+1)); [ $i -lt 20 ] || exit 1; sleep 0.1; done"
}

func (l *lab) rcopy(t *testing.T) {
	t.Helper()
	data := make([]byte, 20<<20)
	rand.Read(data)
	from, to := filepath.Join(l.dir, "from"), filepath.Join(l.dir, "to")
	if err := os.WriteFile(from, data, 0o644); err != nil {
		t.Fatal(err)
	}
	p := port()
	s := l.start(t, 40*time.Second, "a", "rcopy", "-p", p)
	t.Cleanup(func() { s.cmd.Process.Signal(sigterm) }) // it serves for ever
	l.start(t, 40*time.Second, "b", "sh", "-c", again("rcopy "+from+" "+addrOf["a"]+":"+to+" -p "+p)).wait(t)
	eventually(t, 5*time.Second, "the copy is whole", func() (bool, string) {
		got, err := os.ReadFile(to)
		return bytes.Equal(got, data), strings.TrimSpace(s.out.String()) + " " + errText(err)
	})
	s.cmd.Process.Signal(sigterm)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (l *lab) udpong(t *testing.T) {
	t.Helper()
	for _, how := range []string{"b", "a"} {
		p := port()
		s := l.start(t, 30*time.Second, "a", "udpong", "-b", addrOf["a"], "-p", p, "-T", how)
		out := l.on(t, 20*time.Second, "b", "udpong", "-s", addrOf["a"], "-p", p, "-T", how, "-C", "200", "-S", "1000")
		if !strings.Contains(out, "custom") {
			t.Errorf("udpong -T %s:\n%s", how, out)
		}
		s.cmd.Process.Signal(sigterm) // it serves for ever
	}
}

// TestRsocketKill: kill -9 of one end. The other one ends, and nothing of either is left in the NICs.
func TestRsocketKill(t *testing.T) {
	needProgram(t, "rstream")
	for _, victim := range []string{"client", "server"} {
		t.Run(victim, func(t *testing.T) {
			l := up(t, spec{wire: "mem"})
			empty := l.objects(t)
			args := []string{"rstream", "-T", "b", "-I", "1000000", "-C", "100"}
			s := l.start(t, 60*time.Second, "a", append(args, "-b", addrOf["a"])...)
			time.Sleep(500 * time.Millisecond)
			c := l.start(t, 60*time.Second, "b", append(args, "-s", addrOf["a"])...)
			time.Sleep(time.Second)
			if l.objects(t) == empty || !s.running() || !c.running() {
				t.Fatalf("they do not run:\n%s%s", s.out.String(), c.out.String())
			}
			dead, other := c, s
			if victim == "server" {
				dead, other = s, c
			}
			dead.cmd.Process.Kill()
			select {
			case <-other.done:
			case <-time.After(10 * time.Second):
				t.Errorf("the other end still runs 10 s later:\n%s", other.out.String())
				other.cmd.Process.Kill()
			}
			eventually(t, 5*time.Second, "everything freed", func() (bool, string) {
				now := l.objects(t)
				return now == empty, now
			})
		})
	}
}

const echoServer = `import socket,hashlib
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(("",PORT)); s.listen(5)
c,a=s.accept(); h=hashlib.sha256()
while True:
    b=c.recv(100000)
    if not b: break
    h.update(b)
c.sendall(h.digest()); c.close()
`

const echoClient = `import socket,hashlib,os
s=socket.create_connection(("10.0.0.1",PORT)); b=os.urandom(3000000)
s.sendall(b); s.shutdown(socket.SHUT_WR); d=s.recv(32,socket.MSG_WAITALL)
assert d==hashlib.sha256(b).digest() and s.recv(1)==b"" and s.getpeername()==("10.0.0.1",PORT)
`

// TestRsocketPreload: programs of TCP that know nothing of RDMA. That their bytes went through the NIC is what its counter says.
func TestRsocketPreload(t *testing.T) {
	needProgram(t, "iperf3", "python3")
	l := up(t, spec{wire: "tap", impair: "  - {loss: 0.5%}\n"})
	preload := []string{"env", "LD_PRELOAD=" + build(t, "lib/rsocket/librspreload.so")}
	sent := l.counter(t, "a/mr0", "mroce_engine_rx_writes_total")
	p := port()
	s := l.start(t, 30*time.Second, "a", append(preload, "iperf3", "-s", "-1", "-4", "-p", p)...)
	l.start(t, 30*time.Second, "b", append(preload, "sh", "-c", again("iperf3 -4 -t 2 -P 2 -c "+addrOf["a"]+" -p "+p))...).wait(t)
	s.wait(t)
	if now := l.counter(t, "a/mr0", "mroce_engine_rx_writes_total"); now < sent+2000 {
		t.Errorf("the NIC was sent %d writes only: iperf3 used something else", now-sent)
	}
	p = port()
	s = l.start(t, 30*time.Second, "a", append(preload, "/usr/bin/python3", "-c", strings.ReplaceAll(echoServer, "PORT", p))...)
	l.start(t, 30*time.Second, "b", append(preload, "sh", "-c", again("/usr/bin/python3 -c '"+strings.ReplaceAll(echoClient, "PORT", p)+"'"))...).wait(t)
	s.wait(t)
	// and where no NIC has the address, the kernel's sockets
	p = port()
	s = l.start(t, 30*time.Second, "a", append(preload, "iperf3", "-s", "-1", "-4", "-B", "127.0.0.1", "-p", p)...)
	l.start(t, 30*time.Second, "a", append(preload, "sh", "-c", again("iperf3 -4 -t 1 -c 127.0.0.1 -p "+p))...).wait(t)
	s.wait(t)
}

const crossServer = `import socket,time
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(("",PORT)); s.listen(5)
for i in range(24):
    c,a=s.accept(); assert c.recv(1)==b"?"
    c.sendall(b"x"*100000)
    if i%2: c.shutdown(socket.SHUT_WR)
    c.close()
`

const crossClient = `import socket,time
for i in range(24):
    while True:
        try: s=socket.create_connection(("10.0.0.1",PORT)); break
        except OSError: assert i==0; time.sleep(.1)
    s.sendall(b"?"); time.sleep(i*.001); s.shutdown(socket.SHUT_WR)
    n=0
    while True:
        b=s.recv(65536)
        if not b: break
        n+=len(b)
    assert n==100000,(i,n)
    s.close()
`

// TestRsocketCrossing: the asking end says that it has no more to say while the answer, and the end of it, is under way: it
// gets all of it. The wire is slow, so that they cross.
func TestRsocketCrossing(t *testing.T) {
	needProgram(t, "python3")
	l := up(t, spec{wire: "mem", impair: "  - {delay: 5ms}\n"})
	preload := []string{"env", "LD_PRELOAD=" + build(t, "lib/rsocket/librspreload.so")}
	p := port()
	s := l.start(t, 60*time.Second, "a", append(preload, "/usr/bin/python3", "-c", strings.ReplaceAll(crossServer, "PORT", p))...)
	l.start(t, 60*time.Second, "b", append(preload, "/usr/bin/python3", "-c", strings.ReplaceAll(crossClient, "PORT", p))...).wait(t)
	s.wait(t)
}
