package vnet

import (
	"errors"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/cay-run/cay"
)

const (
	// leastBurst lets the largest packet through that a guest hands over.
	leastBurst = 128 << 10
	// shapeQueue is how long packets may wait, in parts of a second, before
	// more are dropped.
	shapeQueue = 10
	shapeLimit = 64 << 20
)

// shape bounds how fast the instance in a slot sends and receives. Packets to it
// queue at the host's end of the pair, packets from it at its own. The engine has
// no say in either.
func (m *Manager) shape(index int, want cay.Bandwidth) error {
	m.mu.Lock()
	have, known := m.shaped[index]
	m.mu.Unlock()
	if known && have == want {
		return nil
	}
	m.mu.Lock()
	delete(m.shaped, index) // unknown until the change is done
	m.mu.Unlock()
	if err := m.shapeHost(index, want.Down); err != nil {
		return shapeError(err)
	}
	if err := m.shapeGuest(index, want.Up); err != nil {
		return shapeError(err)
	}
	m.mu.Lock()
	m.shaped[index] = want
	m.mu.Unlock()
	return nil
}

func shapeError(err error) error {
	return cay.Wrap(cay.Unsupported, err, "the bandwidth of a sandbox cannot be bounded").
		WithHint("the kernel needs the token bucket filter: modprobe sch_tbf")
}

func (m *Manager) shapeHost(index int, rate int64) error {
	link, err := m.links.LinkByName(m.linkName(index))
	if err != nil {
		return err
	}
	return setBucket(m.links, link, rate)
}

func (m *Manager) shapeGuest(index int, rate int64) error {
	ns, err := netns.GetFromPath(namespacePath(m.linkName(index)))
	if err != nil {
		return err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer inside.Close()
	link, err := inside.LinkByName(guestLink)
	if err != nil {
		return err
	}
	return setBucket(inside, link, rate)
}

// setBucket has a link send that many bytes a second at most; 0 is no bound.
func setBucket(h *netlink.Handle, link netlink.Link, rate int64) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if rate == 0 {
		err := h.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINVAL) { // there is none
			return nil
		}
		return err
	}
	burst := uint32(max(leastBurst, min(rate/100, shapeLimit)))
	return h.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: uint64(rate),
		Limit:  burst + uint32(min(rate/shapeQueue, shapeLimit)),
		Buffer: netlink.Xmittime(uint64(rate), burst),
	})
}
