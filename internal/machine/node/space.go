package node

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// roomFor refuses new work where it would take the reserve of the disk, or
// where the run directory's disk is full, which engines keep their files on.
func (n *Node) roomFor(what string) error {
	if dir := disk.Full(n.cfg.Reserved); dir != "" {
		return cay.Errorf(cay.NoSpace, "%s is refused: the disk of the run directory %s is full", what, dir).
			WithHint("make its tmpfs larger, or remove what else lies on it")
	}
	if n.cfg.Disk.Dir == "" {
		return nil
	}
	return n.cfg.Disk.Room(what, 0)
}

// roomToSave refuses a save before the guest is held for it, where its memory
// and its files do not fit on the disk. A part of the reserve may be used: a
// saved sandbox can end, which frees room.
func (n *Node) roomToSave(ctx context.Context, inst *instance, filesOnly bool) error {
	if n.cfg.Disk.Dir == "" {
		return nil
	}
	bytes, err := n.cfg.Engine.SaveSize(ctx, inst.spec.Instance, filesOnly)
	if err != nil {
		return nil // the save itself tells
	}
	return n.cfg.Disk.RoomToSave("saving sandbox "+string(inst.spec.Sandbox), bytes)
}

// roomToResume refuses what starts from something saved only where next to
// nothing is left of the reserve.
func (n *Node) roomToResume() error {
	if n.cfg.Disk.Dir == "" {
		return nil
	}
	return n.cfg.Disk.RoomToSave("a resume", 0)
}
