package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	layersMost = 512
	configMost = 8 << 20 // bytes
	// tarOverhead bounds what a layer has beside the content of its files, an
	// entry: headers, names, attributes.
	tarOverhead = 4096
)

// used is what an image took of its limits.
type used struct {
	bytes   int64
	entries int
}

// unpack applies an image's layers to an empty directory, each checked against
// the digest that the image's configuration has of it. step is told which, and
// how large it is where a registry said so: to know the size of one that is in
// an archive, it would be compressed.
func unpack(ctx context.Context, img v1.Image, config *v1.ConfigFile, dir string, limits Limits, grow *growth, pulled bool, step func(string)) (used, error) {
	layers, err := img.Layers()
	if err != nil {
		return used{}, cay.Wrap(cay.Invalid, err, "the image's list of layers is unusable: %v", err)
	}
	if len(layers) > layersMost || len(layers) != len(config.RootFS.DiffIDs) {
		return used{}, cay.Errorf(cay.Invalid, "the image has %d layers and describes %d; %d are the most",
			len(layers), len(config.RootFS.DiffIDs), layersMost)
	}
	t, err := openTree(dir)
	if err != nil {
		return used{}, disk.Error(err, "open %s", dir)
	}
	defer func() { _ = t.close() }()
	u := &unpacker{tree: t, left: limits, grow: grow}
	for i, l := range layers {
		which := fmt.Sprintf("layer %d of %d", i+1, len(layers))
		if pulled {
			size, _ := l.Size()
			which += fmt.Sprintf(" (%.1f MB)", float64(size)/1e6)
		}
		step(which)
		if err := u.applyLayer(ctx, l, config.RootFS.DiffIDs[i]); err != nil {
			return used{}, err
		}
	}
	return used{bytes: limits.Bytes - u.left.Bytes, entries: limits.Entries - u.left.Entries}, nil
}

func (u *unpacker) applyLayer(ctx context.Context, l v1.Layer, want v1.Hash) error {
	r, err := l.Uncompressed()
	if err != nil {
		return pullError(err, "a layer of the image")
	}
	defer r.Close()
	c := &checked{r: r, left: u.left.Bytes + int64(u.left.Entries)*tarOverhead, sum: sha256.New()}
	if err := u.apply(ctx, c); err != nil {
		return err
	}
	if got := hex.EncodeToString(c.sum.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		return cay.Errorf(cay.Invalid, "a layer of the image is damaged: its content has the digest sha256:%s, not %s", got, want)
	}
	return nil
}

// checked reads a layer within bounds and sums it.
type checked struct {
	r    io.Reader
	left int64
	sum  hash.Hash
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, cay.Errorf(cay.Exhausted, "the image is larger than allowed")
	}
	c.sum.Write(p[:n])
	return n, err
}
