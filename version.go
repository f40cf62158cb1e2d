package cay

// Version is the release that this source becomes, or is. It follows semantic
// versioning; CHANGELOG.md says what changes for operators and clients.
const Version = "0.2.0"
