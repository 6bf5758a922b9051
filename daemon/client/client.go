// Package client talks to a daemon's control socket: management commands for command lines and tests.
package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/device/hostq"
)

// Client is a connection to a daemon.
type Client struct {
	mu      sync.Mutex
	conn    *net.UnixConn
	seq     uint32
	Version string // of the daemon
	PID     int    // of the daemon; 0 when it cannot tell
}

// timeout bounds one exchange: a daemon answers at once or is not there.
const timeout = 10 * time.Second

// ErrVersion says that client and daemon speak different versions.
var ErrVersion = errors.New("daemon and client speak different versions of the control protocol")

// Dial connects and says hello.
func Dial(socket string) (*Client, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn}
	m := hostq.Hello{Magic: hostq.Magic, ABIMajor: hostq.ABIMajor, ABIMinor: hostq.ABIMinor, PID: int32(os.Getpid())}
	copy(m.Program[:len(m.Program)-1], "management")
	var r hostq.HelloReply
	reply, err := c.call(hostq.OpHello, hostq.Bytes(&m)[hostq.Size[hostq.Hdr]():])
	if err == nil && !hostq.Decode(reply, &r) {
		err = errors.New("its HELLO has a wrong size")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", socket, err)
	}
	c.Version, c.PID = cstring(r.Version[:]), int(r.DaemonPID)
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Mgmt runs a management command about all NICs, or the only one, and decodes its result into out (nil: ignored).
func (c *Client) Mgmt(cmd string, args, out any) error { return c.MgmtNIC(cmd, "", args, out) }

// MgmtNIC runs a management command about one NIC.
func (c *Client) MgmtNIC(cmd, nic string, args, out any) error {
	req := api.Request{Cmd: cmd, NIC: nic}
	if args != nil {
		text, err := json.Marshal(args)
		if err != nil {
			return err
		}
		req.Args = text
	}
	text, err := json.Marshal(req)
	if err != nil {
		return err
	}
	reply, err := c.call(hostq.OpMgmt, text)
	if err != nil {
		return err
	}
	var r api.Response
	if err := json.Unmarshal(reply[hostq.Size[hostq.Hdr]():], &r); err != nil {
		return fmt.Errorf("%s: the daemon's answer is no JSON: %w", cmd, err)
	}
	if r.Error != nil {
		return r.Error
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(r.OK, out)
}

// call sends one request and returns the whole reply: header, then the parts' text joined.
func (c *Client) call(op hostq.Op, body []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	n := hostq.Size[hostq.Hdr]()
	h := hostq.Hdr{Op: uint16(op), Len: uint32(n + len(body)), Seq: c.seq}
	if h.Len > hostq.MsgBytes {
		return nil, errors.New("request too long")
	}
	if err := c.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(append(append([]byte(nil), hostq.Bytes(&h)...), body...)); err != nil {
		return nil, fmt.Errorf("the daemon hung up: %w", err)
	}
	var all []byte
	buf := make([]byte, hostq.MsgBytes+1)
	for {
		k, err := c.conn.Read(buf)
		if err != nil || k < n {
			return nil, fmt.Errorf("the daemon hung up: %w", err)
		}
		var r hostq.Hdr
		hostq.Decode(buf[:n], &r)
		if r.Seq != c.seq || r.Op != uint16(op) || r.Flags&hostq.HdrReply == 0 || int(r.Len) != k {
			return nil, errors.New("the daemon's answer belongs to another question")
		}
		if r.Status == errnoVersion {
			return nil, ErrVersion
		}
		if r.Status != 0 {
			return nil, fmt.Errorf("the daemon refused: errno %d", r.Status)
		}
		if all == nil {
			all = append(all, buf[:k]...)
		} else {
			all = append(all, buf[n:k]...)
		}
		if r.Flags&hostq.HdrMore == 0 {
			return all, nil
		}
	}
}

const errnoVersion = 93 // EPROTONOSUPPORT

func cstring(b []byte) string {
	for i, x := range b {
		if x == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
