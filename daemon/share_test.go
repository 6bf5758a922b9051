package daemon

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// TestShare: a token that came over a connection opens its context once; nothing else does.
func TestShare(t *testing.T) {
	d := start(t, nil)
	a, err := objects(d.cfg.Socket, "a/mr0")
	if err != nil {
		t.Fatal(err)
	}
	share := func(p *prog, token [2]uint64) {
		t.Helper()
		p.seq++
		m := hostq.Share{Token: token}
		if _, err := p.conn.Write(seal(append([]byte(nil), hostq.Bytes(&m)...), hostq.OpShare, p.seq)); err != nil {
			t.Error(err)
		}
	}
	importer := func(token [2]uint64) (*prog, hostq.ImportReply, error) {
		t.Helper()
		p, err := dial(d.cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.conn.Close() })
		if _, err := p.hello(); err != nil {
			t.Fatal(err)
		}
		fd, err := memfd(shmBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		var r hostq.ImportReply
		fds, err := call(p, hostq.OpImport, &hostq.Import{Token: token, ShmBytes: shmBytes}, &r, fd)
		closeAll(fds)
		return p, r, err
	}

	token := [2]uint64{7, 11}
	shared := make(chan struct{})
	go func() { // it may come behind the request
		defer close(shared)
		time.Sleep(50 * time.Millisecond)
		share(a.prog, token)
	}()
	p, r, err := importer(token)
	<-shared
	if err != nil || text(r.NIC.Name[:]) != "a/mr0" || r.Attr.MaxQP == 0 {
		t.Fatalf("import: %v, %q", err, text(r.NIC.Name[:]))
	}
	var h hostq.Hdr
	if _, err := call(p, hostq.OpImportPD, &hostq.Handle{Handle: a.pd}, &h); err != nil {
		t.Errorf("the exporter's domain: %v", err)
	}
	if _, err := call(p, hostq.OpImportPD, &hostq.Handle{Handle: a.pd + 9}, &h); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no domain: %v", err)
	}
	if _, _, err := importer(token); !errors.Is(err, unix.EBADF) {
		t.Errorf("a token twice: %v", err)
	}
	if _, _, err := importer([2]uint64{}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no token: %v", err)
	}

	// A connection without a context has none to share; a token that nobody asked for is forgotten after others.
	b, err := dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer b.conn.Close()
	if _, err := b.hello(); err != nil {
		t.Fatal(err)
	}
	share(b, [2]uint64{1, 2})
	for i := range uint64(sharesMost + 1) {
		share(a.prog, [2]uint64{3, i})
	}
	for _, token := range [][2]uint64{{1, 2}, {3, 0}} {
		if _, _, err := importer(token); !errors.Is(err, unix.EBADF) {
			t.Errorf("%v: %v", token, err)
		}
	}

	// The exporter goes first, then the importer: nothing is left.
	a.close()
	p.conn.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var live device.Live
		d.OnLoop(func(mono.Time) { live = d.nics[0].C.Live })
		if live == (device.Live{}) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left over: %+v", live)
		}
	}
}

// TestDMDescriptors: device memory is a sealed file; its descriptor is closed with it, and with its context.
func TestDMDescriptors(t *testing.T) {
	d := start(t, nil)
	a, err := objects(d.cfg.Socket, "a/mr0")
	if err != nil {
		t.Fatal(err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	alloc := func(length uint64, size int64, seals int) (uint32, error) {
		t.Helper()
		fd, err := memfd(size, seals)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		var r hostq.Handle
		_, err = call(a.prog, hostq.OpAllocDM, &hostq.DM{Length: length}, &r, fd)
		return r.Handle, err
	}
	for _, c := range []struct {
		length uint64
		size   int64
		seals  int
	}{{100, 4096, 0}, {100, 4096, unix.F_SEAL_SHRINK}, {5000, 4096, seals}, {100, 8192, seals}, {0, 4096, seals}, {1 << 62, 4096, seals}} {
		if _, err := alloc(c.length, c.size, c.seals); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	kept := func() (n int) {
		var all []*client
		d.mu.Lock()
		for _, c := range d.clients {
			all = append(all, c)
		}
		d.mu.Unlock()
		for _, c := range all {
			d.OnLoop(func(mono.Time) { n += len(c.dms) })
		}
		return n
	}
	h1, err1 := alloc(100, 4096, seals)
	_, err2 := alloc(4097, 8192, seals)
	if err1 != nil || err2 != nil || kept() != 2 {
		t.Fatalf("%v, %v, %d kept", err1, err2, kept())
	}
	var dm hostq.DM
	fds, err := call(a.prog, hostq.OpImportDM, &hostq.Handle{Handle: h1}, &dm)
	if err != nil || len(fds) != 1 || dm.Length != 100 {
		t.Errorf("import: %v, %d descriptors, %d bytes", err, len(fds), dm.Length)
	}
	closeAll(fds)
	var hdr hostq.Hdr
	if _, err := call(a.prog, hostq.OpFreeDM, &hostq.Handle{Handle: h1}, &hdr); err != nil || kept() != 1 {
		t.Errorf("free: %v, %d kept", err, kept())
	}
	if _, err := call(a.prog, hostq.OpFreeDM, &hostq.Handle{Handle: h1}, &hdr); !errors.Is(err, unix.EINVAL) {
		t.Errorf("twice: %v", err)
	}
	a.close()
	for end := time.Now().Add(10 * time.Second); kept() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d kept", kept())
		}
	}
}
