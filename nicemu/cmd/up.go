package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/ports"
	"github.com/metaroce/metaroce/nicemu/wire/udp"
)

func (e *env) upCommand() *cli.Command {
	return &cli.Command{
		Name: "up", Usage: "start a daemon with one NIC on this machine",
		Description: example("nicemu up --addr 10.0.0.1/24", "nicemu run -- ibv_devinfo", "nicemu down") + "\n\n" +
			"Two machines (192.0.2.1 and 192.0.2.2) over one plane; swap the addresses on the second:\n" +
			"  nicemu up --addr 10.0.0.1/24 --wire udp:192.0.2.1:4791 --peer 10.0.0.2=192.0.2.2:4791\n" +
			"Several planes: several --wire, and --peer 10.0.0.2=PLANE:ADDRESS:PORT for each.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "nic", Usage: "its name, HOST/mrN or mrN; default: the host's name and mr0"},
			&cli.StringSliceFlag{Name: "wire", Usage: "a plane's wire, in order: tap:NAME[?bridge=BR], udp:ADDRESS[:PORT], mem:"},
			&cli.StringSliceFlag{Name: "addr", Usage: "address of the NIC with its prefix length; its GIDs, in order"},
			&cli.StringSliceFlag{Name: "peer", Usage: "where a GID is reached on udp wires: GID=[PLANE:]ADDRESS[:PORT]"},
			&cli.StringFlag{Name: "transport", Usage: "how connections travel: auto (MetaRoCE, and RoCEv2 with peers that do not speak it), metaroce, rocev2", Value: "auto"},
			&cli.StringFlag{Name: "netdev", Usage: "give this machine a network interface of that name behind the NIC, with its addresses (needs root)"},
			&cli.IntFlag{Name: "mtu", Usage: "MTU of the planes' Ethernet", Value: labfile.DefaultMTU},
			&cli.DurationFlag{Name: "noise", Usage: "the wires' timing noise, floor of delay targets and loss timers; by the wire unless given (2ms: shared cores)"},
			&cli.StringFlag{Name: "socket", Usage: "path of the control socket"},
			&cli.StringFlag{Name: "group", Usage: "let this group use the NIC too"},
			&cli.StringFlag{Name: "dma", Usage: "how programs' memory is reached: auto, or assist (each program copies by itself: slower, and a wait for its memory is bounded)", Value: "auto"},
			&cli.StringFlag{Name: "capture", Usage: "write all that the planes send and receive to this pcapng file, from the first packet to the last"},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "leave the daemon running in the background (the default)"},
			&cli.BoolFlag{Name: "foreground", Usage: "stay, show the log, end the NIC on Ctrl-C (for systemd)"},
			jsonFlag(),
		},
		Action: e.up,
	}
}

func (e *env) downCommand() *cli.Command {
	return &cli.Command{
		Name: "down", Usage: "end the daemon that `up` started", ArgsUsage: "[NAME]", Description: example("nicemu down"),
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "all", Usage: "every one of this user"}},
		Action: e.down,
	}
}

func (e *env) up(c *cli.Context) error {
	if c.Args().Len() > 0 {
		return fail.Usagef("up takes flags only; what is %q?", c.Args().First())
	}
	nic, err := upNIC(c)
	if err != nil {
		return err
	}
	if c.Bool("foreground") && c.Bool("detach") {
		return fail.Usagef("--foreground and --detach exclude each other")
	}
	dma, err := serve.CheckDMA(c.String("dma"))
	if err != nil {
		return err
	}
	capture, err := serve.CheckCapture(c.String("capture"))
	if err != nil {
		return err
	}
	o := lab.NICOptions{
		Capture: capture, NIC: nic, Socket: c.String("socket"), Group: c.String("group"), DMA: dma, Version: e.version,
		Note: func(s string) { e.note("%s", s) },
	}
	s, err := lab.UpNIC(c.Context, o)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		if err := e.printJSON(labJSON(s)); err != nil {
			return err
		}
	} else {
		e.describeNIC(s, nic)
	}
	if !c.Bool("foreground") {
		return nil
	}
	return cmp.Or(s.Follow(c.Context, e.err), s.Down(), ended(c.Context))
}

func (e *env) describeNIC(s *lab.State, n serve.NIC) {
	var addrs, wires []string
	for _, a := range n.Addrs {
		addrs = append(addrs, a.String())
	}
	for _, w := range n.Planes {
		wires = append(wires, w.URL)
	}
	fmt.Fprintf(e.out, "%s: %s, %s (%s), control socket %s\n", n.Name, strings.Join(addrs, " "), count(len(wires), "plane"), strings.Join(wires, " "), s.Daemons[0].Socket)
	fmt.Fprintf(e.out, "try: nicemu run -- ibv_devinfo\n")
}

func (e *env) down(c *cli.Context) error {
	if c.Bool("all") {
		all, err := lab.List(lab.KindNIC)
		if err != nil {
			return err
		}
		var errs []error
		for _, s := range all {
			if err := s.Down(); err != nil {
				errs = append(errs, err)
				continue
			}
			e.note("%s is down", s.Name)
		}
		if len(all) == 0 {
			e.note("nothing is up")
		}
		return errors.Join(errs...)
	}
	s, err := lab.Find(lab.KindNIC, strings.ReplaceAll(c.Args().First(), "/", "-"))
	if err != nil {
		return err
	}
	if err := s.Down(); err != nil {
		return err
	}
	e.note("%s is down", s.Name)
	return nil
}

// upNIC reads the flags of `up` into a NIC.
func upNIC(c *cli.Context) (serve.NIC, error) {
	n, err := serve.NewNIC(c.String("nic"), c.StringSlice("addr"), c.String("transport"))
	if err != nil {
		return n, err
	}
	if mtu := c.Int("mtu"); mtu < labfile.MinMTU || mtu > labfile.MaxMTU {
		return n, fail.Usagef("--mtu %d: a number from %d to %d", mtu, labfile.MinMTU, labfile.MaxMTU)
	}
	if err := serve.CheckGroup(c.String("group")); err != nil {
		return n, err
	}
	var noise *time.Duration
	if d := c.Duration("noise"); c.IsSet("noise") {
		if d < 0 || d > labfile.MaxNoise {
			return n, fail.Usagef("--noise %v: a time from 0s to %v", d, labfile.MaxNoise)
		}
		noise = &d
	}
	wires := c.StringSlice("wire")
	if len(wires) == 0 {
		wires = []string{"mem:"}
	}
	for _, w := range wires {
		kind, _, _ := strings.Cut(w, ":")
		switch kind {
		case "udp":
			if _, err := udp.ParseURL(w); err != nil {
				return n, fail.Usagef("--wire %w", err)
			}
		case "tap", "mem":
		default:
			if near := labfile.Nearest(kind, []string{"tap", "udp", "mem"}); near != "" {
				return n, fail.Usagef("--wire %s: unknown kind of wire; did you mean %s:?", w, near)
			}
			return n, fail.Usagef("--wire %s: a wire is tap:NAME, udp:ADDRESS[:PORT] or mem:", w)
		}
		n.Planes = append(n.Planes, serve.Wire{URL: w, MTU: c.Int("mtu"), Noise: noise})
	}
	if dev := c.String("netdev"); dev != "" {
		kind, _, _ := strings.Cut(wires[0], ":")
		n.HostPort = &serve.Wire{URL: dev, MTU: ports.HostMTU(kind, c.Int("mtu"))}
	}
	for _, p := range c.StringSlice("peer") {
		if err := addPeer(&n, p); err != nil {
			return n, err
		}
	}
	return n, nil
}

// addPeer reads GID=[PLANE:]ADDRESS[:PORT].
func addPeer(n *serve.NIC, text string) error {
	usage := func(why string) error {
		return fail.Usagef("--peer %s: %s; want GID=[PLANE:]ADDRESS[:PORT] such as 10.0.0.2=0:192.0.2.2:4791", text, why)
	}
	g, where, ok := strings.Cut(text, "=")
	gid, err := netip.ParseAddr(g)
	if !ok || err != nil {
		return usage("no GID in front")
	}
	plane := -1
	if p, rest, ok := strings.Cut(where, ":"); ok && rest != "" {
		if v, err := strconv.Atoi(p); err == nil {
			plane, where = v, rest
		}
	}
	at, err := netip.ParseAddrPort(where)
	if err != nil {
		a, errA := netip.ParseAddr(strings.Trim(where, "[]"))
		if errA != nil {
			return usage("no address")
		}
		at = netip.AddrPortFrom(a, 4791)
	}
	if plane < 0 {
		if len(n.Planes) > 1 {
			return usage("with several planes it must name one")
		}
		plane = 0
	}
	if plane >= len(n.Planes) {
		return usage(fmt.Sprintf("there are planes 0 to %d", len(n.Planes)-1))
	}
	if !strings.HasPrefix(n.Planes[plane].URL, "udp:") {
		return usage(fmt.Sprintf("plane %d is no udp wire", plane))
	}
	n.Planes[plane].Peers = append(n.Planes[plane].Peers, serve.Peer{GID: gid, At: at})
	return nil
}
