package space

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/netdev"
	"github.com/metaroce/metaroce/nicemu/view"
)

// Hold is the holder process: it makes what the plan on its socket says, answers, and sleeps until it is ended.
// The process was started in the fabric's network namespace (and, rootless, in the lab's user namespace).
func Hold() error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	signal.Ignore(unix.SIGHUP)
	text, err := receiveChunks(sockFD)
	if err != nil {
		return fmt.Errorf("this command is for nicemu's own use: %w", err)
	}
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	h := &holder{plan: p, views: map[string][]*view.Kept{}}
	if err := h.make(); err != nil {
		h.send(message{Error: err.Error()}, -1)
		return err
	}
	h.send(message{Done: true}, -1)
	// Until who started us has recorded us, we live and die with it: nobody else would ever end us.
	var kept [1]byte
	if n, err := unix.Read(sockFD, kept[:]); n != 1 {
		return fmt.Errorf("who started this holder is gone: %w", err)
	}
	unix.Close(sockFD)
	for socket, trees := range h.views {
		d := &view.Daemon{Socket: socket}
		go view.Follow(context.Background(), d.Ports, trees)
	}
	for i := range h.plan.Hosts {
		go follow(&h.plan.Hosts[i], int(h.keep[3*i].Fd()))
	}
	<-stop
	runtime.KeepAlive(h)
	return nil
}

// follow tells the daemon of each change of addresses in a host.
func follow(spec *Host, ns int) {
	var names []string
	for _, n := range spec.NICs {
		names = append(names, n.Name)
	}
	err := netdev.Watch(context.Background(), ns, names, func(name string, addrs []netip.Addr) error {
		d := view.Daemon{Socket: spec.Socket}
		defer d.Close()
		err := d.SetAddrs(spec.Name+"/"+name, netdev.Texts(addrs))
		if err != nil {
			fmt.Fprintf(os.Stderr, "host %s: %s: addresses: %v\n", spec.Name, name, err)
		}
		return netdev.Unheard(err)
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "host %s: GIDs do not follow addresses: %v\n", spec.Name, err)
	}
}

type holder struct {
	plan Plan
	keep []*os.File // the namespaces live as long as these are open
	// views are to be kept up to date, by the socket of the daemon that knows.
	views map[string][]*view.Kept
}

func (h *holder) send(m message, fd int) {
	text, err := json.Marshal(m)
	if err != nil {
		return
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	_ = unix.Sendmsg(sockFD, text, oob, nil, unix.MSG_NOSIGNAL)
}

// make builds the fabric on a thread of its own namespace, and one thread per host that leaves it.
func (h *holder) make() error {
	if err := slave(); err != nil {
		return err
	}
	quietIPv6()
	for plane := range h.plan.Planes {
		if err := h.bridge(bridgeName(plane), h.plan.MTU); err != nil {
			return err
		}
	}
	if !h.plan.HostPort {
		if err := h.bridge(oobBridge, h.plan.HostMTU); err != nil {
			return err
		}
	}
	for i := range h.plan.Hosts {
		if err := h.host(i); err != nil {
			return fmt.Errorf("host %s: %w", h.plan.Hosts[i].Name, err)
		}
	}
	return nil
}

const oobBridge = "oob"

func bridgeName(plane int) string { return fmt.Sprintf("plane%d", plane) }

// slave lets later mounts of the machine appear here, and none of ours there.
func slave() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cannot separate the mounts: %w", err)
	}
	return nil
}

// quietIPv6 keeps the kernel from sending anything by itself on interfaces made later.
func quietIPv6() {
	for _, f := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/disable_ipv6", []byte("1"), 0)
	}
}

func (h *holder) bridge(name string, mtu int) error {
	off := false
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, TxQLen: -1}, MulticastSnooping: &off}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("cannot make the bridge %s: %w", name, err)
	}
	return netlink.LinkSetUp(br)
}

// enslave puts a netdev of the fabric on a bridge.
func (h *holder) enslave(dev, bridge string, mtu int) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(l, br); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// portName is a netdev of the fabric. Long host names do not fit into 15 letters; numbers do.
func portName(host int, name, nic, suffix string) string {
	if s := name + "-" + nic + suffix; len(s) < unix.IFNAMSIZ {
		return s
	}
	return fmt.Sprintf("h%d-%s%s", host, nic, suffix)
}

// host makes one host: its thread enters new namespaces, the fabric's side is made from here.
func (h *holder) host(i int) error {
	spec := &h.plan.Hosts[i]
	t := startThread()
	defer t.stop()
	if err := t.do(func() error { return h.enterHost(spec) }); err != nil {
		return err
	}
	for _, nic := range spec.NICs {
		for plane := range h.plan.Planes {
			if err := h.planeTAP(i, spec.Name, nic.Name, plane); err != nil {
				return fmt.Errorf("plane %d: %w", plane, err)
			}
		}
		if !h.plan.HostPort {
			if err := h.veth(i, spec.Name, nic.Name); err != nil {
				return err
			}
		}
		if err := t.do(func() error { return h.netdev(spec, nic) }); err != nil {
			return err
		}
	}
	if err := t.do(func() error { return h.files(spec) }); err != nil {
		return err
	}
	h.send(message{Host: spec.Name, NS: &NS{
		Net: int(h.keep[len(h.keep)-3].Fd()), UTS: int(h.keep[len(h.keep)-2].Fd()), Mnt: int(h.keep[len(h.keep)-1].Fd()),
	}}, -1)
	return nil
}

// enterHost runs on the host's thread.
func (h *holder) enterHost(spec *Host) error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot make its namespaces: %w", err)
	}
	for _, kind := range []string{"net", "uts", "mnt"} {
		f, err := os.Open("/proc/thread-self/ns/" + kind)
		if err != nil {
			return err
		}
		h.keep = append(h.keep, f)
	}
	if err := slave(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("cannot set the host name: %w", err)
	}
	// An address must be usable at once, without asking the link for duplicates first.
	for _, f := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_dad", []byte("0"), 0)
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_ra", []byte("0"), 0)
	}
	// Programs run without capabilities; ping should work all the same.
	_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", fmt.Appendf(nil, "%d %d", os.Getgid(), os.Getgid()), 0)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

func (h *holder) planeTAP(i int, host, nic string, plane int) error {
	name := portName(i, host, nic, fmt.Sprintf(".%d", plane))
	fd, err := OpenTAP(name, h.plan.PlaneVnetHdr)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := h.enslave(name, bridgeName(plane), h.plan.MTU); err != nil {
		return err
	}
	h.send(message{TAP: &TAP{Host: host, NIC: nic, Plane: plane}}, fd)
	return nil
}

// veth joins the host's netdev to the out-of-band bridge.
func (h *holder) veth(i int, host, nic string) error {
	name := portName(i, host, nic, "")
	v := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: h.plan.HostMTU, TxQLen: -1},
		PeerName:  nic, PeerNamespace: netlink.NsFd(h.keep[len(h.keep)-3].Fd()), PeerMTU: uint32(h.plan.HostMTU),
	}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("cannot make a veth pair: %w", err)
	}
	return h.enslave(name, oobBridge, h.plan.HostMTU)
}

// netdev runs on the host's thread: it makes the host port, or takes the veth, and gives it the addresses.
func (h *holder) netdev(spec *Host, nic NIC) error {
	if h.plan.HostPort {
		fd, err := OpenTAP(nic.Name, h.plan.HostVnetHdr)
		if err != nil {
			return fmt.Errorf("host port: %w", err)
		}
		defer unix.Close(fd)
		h.send(message{TAP: &TAP{Host: spec.Name, NIC: nic.Name, Plane: -1}}, fd)
	}
	l, err := netlink.LinkByName(nic.Name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(l, h.plan.HostMTU); err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(l, nic.MAC[:]); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for _, a := range nic.Addrs {
		addr, err := netlink.ParseAddr(a.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("cannot give %s the address %s: %w", nic.Name, a, err)
		}
	}
	return nil
}

// files runs on the host's thread: its /etc/hosts and the sysfs and /dev view. Neither is worth failing for.
func (h *holder) files(spec *Host) error {
	if spec.HostsFile != "" {
		if err := unix.Mount(spec.HostsFile, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
			h.send(message{Note: fmt.Sprintf("host %s: names of hosts are unknown inside: cannot bind /etc/hosts: %v", spec.Name, err)}, -1)
		}
	}
	if spec.View == nil {
		return nil
	}
	notes, err := view.Mount(*spec.View)
	if err == nil {
		var f *view.Files // opened here: the tree is in this host's mounts only
		if f, err = view.OpenFiles(spec.View.Class()); err == nil {
			h.views[spec.Socket] = append(h.views[spec.Socket], &view.Kept{Spec: *spec.View, Files: f})
		}
	}
	if err != nil {
		h.send(message{Note: fmt.Sprintf("host %s: no sysfs and /dev view: %v", spec.Name, err)}, -1)
	}
	for _, n := range notes {
		h.send(message{Note: "host " + spec.Name + ": " + n}, -1)
	}
	return nil
}

// OpenTAP makes a TAP in the calling thread's network namespace.
func OpenTAP(name string, vnet bool) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if vnet {
		flags |= unix.IFF_VNET_HDR
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("cannot make the TAP %s: %w", name, err)
	}
	return fd, nil
}

// thread is an OS thread that may leave the process's namespaces; it ends with its goroutine.
type thread struct {
	work chan func() error
	done chan error
}

func startThread() *thread {
	t := &thread{work: make(chan func() error), done: make(chan error)}
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime then ends the thread
		for f := range t.work {
			t.done <- f()
		}
	}()
	return t
}

func (t *thread) do(f func() error) error { t.work <- f; return <-t.done }
func (t *thread) stop()                   { close(t.work) }
