package fabric

import (
	"sync"

	"github.com/metaroce/metaroce/internal/mono"
)

// post puts an event into the queue of a domain, which may be another thread's.
func (d *domain) post(to int32, e event) {
	if to == d.id {
		d.queue.push(e)
		return
	}
	d.out[to] = append(d.out[to], e)
}

// wake puts a host's wake-up into the queue unless it is there for no later.
func (d *domain) wake(host int32, at mono.Time) {
	if at < d.n.due[host] {
		d.n.due[host] = at
		d.queue.push(event{at: at, key: keyWake | uint64(host)})
	}
}

func (d *domain) step(now mono.Time, host int32) {
	if at := d.n.hosts[host].Step(now); at != mono.Never {
		d.wake(host, max(at, now+1))
	}
}

// runTo works on all events before a time.
func (d *domain) runTo(end mono.Time) {
	for d.queue.next() < end {
		e := d.queue.pop()
		d.C.Events++
		switch id := int32(e.key &^ keyKind >> 24); e.key & keyKind {
		case keyArrive:
			d.arrive(e.at, &d.n.ports[id], e.p)
		case keyTxDone:
			d.txDone(e.at, &d.n.ports[e.key&^keyKind])
		case keyPause:
			d.onPause(e.at, &d.n.ports[id], e.arg != 0)
		case keyTrigger:
			h := int32(e.key &^ keyKind >> 40)
			d.n.hosts[h].Trigger(e.at, e.arg)
			d.step(e.at, h)
		case keyWake:
			h := int32(e.key &^ keyKind)
			if d.n.due[h] == e.at {
				d.n.due[h] = mono.Never
				d.step(e.at, h)
			}
		}
	}
}

// arrive is a packet at the end of a link.
func (d *domain) arrive(now mono.Time, x *Port, p *Packet) {
	p.Hop++
	if x.m.Spec().Down { // it was on the wire when that went down
		x.cutOff++
		d.free.put(p)
		return
	}
	if x.host >= 0 {
		d.C.Delivered++
		if p.Payload {
			d.C.Data++
		}
		d.n.hosts[x.host].Deliver(now, p)
		d.free.put(p)
		d.step(now, x.host)
		return
	}
	if x.fifo != nil && !d.hold(now, x, p) {
		d.free.put(p)
		return
	}
	d.send(now, d.route(int64(now), &d.n.nodes[x.sw], p), p)
}

// runner runs the threads but the first, which is the caller's.
type runner struct {
	begin []chan mono.Time
	done  sync.WaitGroup
}

func (n *Net) start() {
	if n.threads == 1 {
		return
	}
	r := &runner{}
	for _, d := range n.doms[1:] {
		c := make(chan mono.Time)
		r.begin = append(r.begin, c)
		go func() {
			for end := range c {
				d.runTo(end)
				r.done.Done()
			}
		}()
	}
	n.run = r
}

// Close ends the threads.
func (n *Net) Close() {
	if n.run != nil {
		for _, c := range n.run.begin {
			close(c)
		}
		n.run = nil
	}
}

// window runs all domains up to a time and hands over what crosses.
func (n *Net) window(end mono.Time) {
	if r := n.run; r != nil {
		r.done.Add(len(r.begin))
		for _, c := range r.begin {
			c <- end
		}
		n.doms[0].runTo(end)
		r.done.Wait()
	} else {
		n.doms[0].runTo(end)
	}
	if n.threads == 1 {
		return
	}
	for _, d := range n.doms {
		for to, es := range d.out {
			for _, e := range es {
				n.doms[to].queue.push(e)
			}
			clear(es)
			d.out[to] = es[:0]
		}
	}
	n.balance()
}

// balance moves free packets to the threads that have few: data goes one way more than the other.
func (n *Net) balance() {
	most, least := n.doms[0], n.doms[0]
	for _, d := range n.doms[1:] {
		if d.free.n > most.free.n {
			most = d
		}
		if d.free.n < least.free.n {
			least = d
		}
	}
	if most.free.n > 2*least.free.n+4096 {
		most.free.give(&least.free, (most.free.n-least.free.n)/2, false)
	}
	n.balanceLong()
}

// balanceLong does the same with those that have room for long packets.
func (n *Net) balanceLong() {
	most, least := n.doms[0], n.doms[0]
	for _, d := range n.doms[1:] {
		if d.free.nLong > most.free.nLong {
			most = d
		}
		if d.free.nLong < least.free.nLong {
			least = d
		}
	}
	if most.free.nLong > 2*least.free.nLong+64 {
		most.free.give(&least.free, (most.free.nLong-least.free.nLong)/2, true)
	}
}

// Run goes on until a time, or until more says no, which it is asked once for each stretch of Ahead: at the same times
// whatever the number of threads.
func (n *Net) Run(until mono.Time, more func() bool) error {
	if err := n.ready(); err != nil {
		return err
	}
	if n.run == nil {
		n.start()
	}
	for {
		if !more() {
			return nil
		}
		at := mono.Never
		for _, d := range n.doms {
			at = min(at, d.queue.next())
		}
		if len(n.global) > 0 && n.global[0].at <= at {
			if n.global[0].at > until {
				break
			}
			g := n.global[0]
			n.global = n.global[1:]
			n.Now = g.at
			g.f(g.at)
			continue
		}
		if at > until {
			break
		}
		end := at - at%mono.Time(n.ahead) + mono.Time(n.ahead)
		if len(n.global) > 0 {
			end = min(end, n.global[0].at)
		}
		end = min(end, until+1)
		n.window(end)
		n.Now = end - 1
	}
	n.Now = max(n.Now, min(until, mono.Never-1))
	return nil
}
