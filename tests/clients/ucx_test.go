//go:build clients

package clients

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// UCX's transports over verbs by the names of UCX_TLS; rc_v is rc_verbs with ud_verbs for setting connections up.
var ucxTransports = []struct{ name, tls string }{{"rc_verbs", "rc_v"}, {"ud_verbs", "ud_v"}}

func ucx() *suite {
	s := &suite{
		name: "UCX", packages: "ucx-utils libucx0", half: "b",
		about: "`UCX_TLS` allows one transport and `self`, so that nothing goes by TCP or shared memory. A line of UCX's with WARN or ERROR is a failure.",
	}
	s.rows = append(s.rows, row{program: "ucx_info", feature: "`-d`", net: oneHost, smoke: true, run: func(l *lab) error {
		out, err := l.one(20*time.Second, "ucx_info", "-d")
		for _, want := range []string{"Transport: rc_verbs", "Transport: ud_verbs", "Device: mr0:1"} {
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("no %q in:\n%s", want, out)
			}
		}
		return ucxQuiet(out, err)
	}}, row{program: "ucx_info", feature: "`-d`: connection manager rdmacm", net: oneHost, run: func(l *lab) error {
		out, err := l.one(20*time.Second, "ucx_info", "-d")
		if err == nil && strings.Contains(out, "failed to open connection manager rdmacm") {
			err = fmt.Errorf("not supported: %s", out)
		} else if err == nil && !strings.Contains(out, "Connection manager: rdmacm") {
			err = fmt.Errorf("no rdmacm in:\n%s", out)
		}
		return err
	}})
	for _, tr := range ucxTransports {
		for _, c := range []struct{ feature, args string }{
			{"tag latency", "-t tag_lat -n 1000"},
			{"tag, 64 KiB", "-t tag_bw -s 65536 -n 500"},
			{"synchronous tag", "-t tag_sync_lat -n 500"},
			{"tag, unexpected, any source", "-t tag_lat -C -U -s 20000 -n 200"},
			{"tag, lists of pieces", "-t tag_bw -D iov,iov -s 3000,5000,70000 -n 200"},
			{"put latency", "-t ucp_put_lat -n 1000"},
			{"put, 64 KiB", "-t ucp_put_bw -s 65536 -n 500"},
			{"get, 64 KiB", "-t ucp_get -s 65536 -n 300"},
			{"atomic add", "-t ucp_add -n 1000"},
			{"fetch and add", "-t ucp_fadd -n 500"},
			{"swap", "-t ucp_swap -n 500"},
			{"compare and swap", "-t ucp_cswap -n 500"},
			{"stream latency", "-t stream_lat -n 500"},
			{"stream, 64 KiB", "-t stream_bw -s 65536 -n 200"},
			{"active messages, latency", "-t ucp_am_lat -n 500"},
			{"active messages, 1 MiB", "-t ucp_am_bw -s 1048576 -n 40"},
		} {
			s.rows = append(s.rows, row{program: "ucx_perftest", feature: tr.name + ": " + c.feature, net: lossy,
				smoke: tr.name+c.feature == "rc_verbstag, 64 KiB", run: func(l *lab) error { return l.ucxPerftest(60*time.Second, tr.tls, c.args+" -w 50") }})
		}
		s.rows = append(s.rows, row{program: "ucx_perftest", feature: tr.name + ": tag, 16 KiB, 20 s at 10 % loss", net: loss10, smoke: tr.name == "rc_verbs",
			run: func(l *lab) error { return l.ucxFor(20*time.Second, tr.tls) }})
	}
	s.rows = append(s.rows,
		row{program: "ucx_perftest", feature: "rc_verbs: 4 threads", net: lossy, run: func(l *lab) error {
			return l.ucxPerftest(60*time.Second, "rc_v", "-t tag_bw -s 4096 -n 500 -w 10 -T 4 -M multi")
		}},
		row{program: "ucx_perftest", feature: "whatever UCX chooses but shared memory", net: lossy, run: func(l *lab) error {
			return l.ucxChooses(64<<10, 500)
		}},
		row{program: "ucx_perftest", feature: "rc_verbs: wake-up by events `-I`", net: lossy, run: func(l *lab) error {
			return l.ucxPerftest(60*time.Second, "rc_v", "-t tag_bw -s 65536 -n 500 -w 10 -I")
		}})
	for _, o := range []struct{ feature, args string }{{"tags", ""}, {"active messages", "-A"}} {
		s.rows = append(s.rows, row{program: "io_demo", feature: "connects by rdma_cm, rc_verbs: " + o.feature, net: lossy, smoke: o.args == "",
			run: func(l *lab) error { return l.ioDemo(o.args) }})
	}
	return s
}

// ucxQuiet adds UCX's own warnings to what is wrong.
func ucxQuiet(out string, err error) error {
	if loud := regexp.MustCompile(`(?m)^.*UCX +(WARN|ERROR|FATAL).*$`).FindString(out); loud != "" && err == nil {
		return fmt.Errorf("UCX warns: %s\n%s", loud, out)
	}
	return err
}

func ucxEnv(tls string, program ...string) []string {
	return append([]string{"env", "UCX_TLS=" + tls + ",self", "UCX_NET_DEVICES=mr0:1"}, program...)
}

// ucxChooses: UCX finds the NIC by itself, and all goes through it.
func (l *lab) ucxChooses(size, n int) error {
	before, err := l.counters()
	if err != nil {
		return err
	}
	port := l.port()
	cmd := []string{"env", "UCX_TLS=^sysv,posix,cma", "ucx_perftest", "-p", port} // the hosts of a lab have one boot ID, and UCX thinks that they are one
	client := append(append([]string{}, cmd...), words("a", fmt.Sprintf("-t tag_bw -w 10 -s %d -n %d", size, n))...)
	out, err := l.pair(pair{server: cmd, client: client, listen: port, limit: time.Minute})
	if err != nil {
		return err
	}
	after, err := l.counters()
	if err != nil {
		return err
	}
	if got := after["b"].Out - before["b"].Out; got < uint64(size*n) {
		err = fmt.Errorf("%d bytes had to move, and the NIC counted %d:\n%s", size*n, got, out)
	}
	return ucxQuiet(out, err)
}

func (l *lab) ucxPerftest(limit time.Duration, tls, args string) error {
	port := l.port()
	cmd := ucxEnv(tls, words("ucx_perftest", "-p "+port)...)
	out, err := l.pair(pair{server: cmd, client: words(cmd[0], "", append(append([]string{}, cmd[1:]...), words("a", args)...)...), listen: port, limit: limit})
	if err == nil && !strings.Contains(out, "Final:") {
		err = fmt.Errorf("ucx_perftest printed no result:\n%s", out)
	}
	return ucxQuiet(out, err)
}

// ucxFor repeats a run for a time: an endpoint that fails is an error of ucx_perftest ("transport retry count exceeded").
// Over ud_verbs UCX resends on its own, by timers that make 25 messages a second at this loss.
func (l *lab) ucxFor(d time.Duration, tls string) error {
	n := map[string]string{"rc_v": "2000", "ud_v": "100"}[tls]
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := l.ucxPerftest(60*time.Second, tls, "-t tag_bw -s 16384 -w 10 -n "+n); err != nil {
			return err
		}
	}
	return nil
}

// TestSoakUCX: ten minutes at 10 % loss, and no endpoint gives up (field case F14).
func TestSoakUCX(t *testing.T) {
	if err := on(t, loss10).ucxFor(10*time.Minute, "rc_v"); err != nil {
		t.Error(err)
	}
}

// ioDemo: UCX's client and server that find each other by address and port, with every byte checked.
func (l *lab) ioDemo(args string) error {
	port := l.port()
	cmd := append([]string{"env", "UCX_SOCKADDR_TLS_PRIORITY=rdmacm"}, ucxEnv("rc_v", words("io_demo", "-q -d 64:100000 -p "+port+" "+args)...)...)
	out, err := l.pair(pair{server: cmd, client: append(append([]string{}, cmd...), words("-i", "200 -o read,write 10.0.0.1")...), endless: true, limit: 40 * time.Second})
	if err == nil && !regexp.MustCompile(`total min:|read \d|write \d`).MatchString(out) {
		err = fmt.Errorf("io_demo moved nothing:\n%s", out)
	}
	return ucxQuiet(out, err)
}
