package cay

// Garbage is something on a machine's disk that nothing needs any more.
type Garbage struct {
	Kind  string // snapshot, root image, layer, archive, image or tree
	Name  string
	Bytes int64 // that it takes on the disk
}
