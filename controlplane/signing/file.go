package signing

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// maxFile bounds the file of keys, in bytes.
const maxFile = 1 << 20

// ring checks what a file holds. Errors never quote it.
func (s stored) ring() (r ring, err error) {
	seed, err := base64.RawURLEncoding.DecodeString(s.Signing.Seed)
	if err != nil || len(seed) != ed25519.SeedSize {
		return r, errors.New("the signing key is damaged")
	}
	r.private = ed25519.NewKeyFromSeed(seed)
	if thumbprint(publicOf(r.private)) != s.Signing.ID {
		return r, errors.New("the signing key is not the one its id names")
	}
	for _, old := range s.Retired {
		public, err := base64.RawURLEncoding.DecodeString(old.Public)
		if err != nil || len(public) != ed25519.PublicKeySize || thumbprint(public) != old.ID {
			return r, fmt.Errorf("the retired key %q is damaged", old.ID)
		}
		k := retiredKey{public: public, until: old.PublishedUntil}
		if old.Seed != "" {
			seed, err := base64.RawURLEncoding.DecodeString(old.Seed)
			if err != nil || len(seed) != ed25519.SeedSize {
				return r, fmt.Errorf("the retired key %q is damaged", old.ID)
			}
			k.private = ed25519.NewKeyFromSeed(seed)
			if !k.public.Equal(publicOf(k.private)) {
				return r, fmt.Errorf("the retired key %q is not the one its id names", old.ID)
			}
		}
		r.retired = append(r.retired, k)
	}
	return r, nil
}

// destroyExpired takes the keys whose grace has ended out of the file.
func destroyExpired(stateDir string, now time.Time) error {
	return locked(stateDir, func(path string) error {
		s, err := read(path)
		if err != nil {
			return err
		}
		s.Retired = slices.DeleteFunc(s.Retired, func(old retired) bool { return !old.PublishedUntil.After(now) })
		return write(path, s)
	})
}

func read(path string) (s stored, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return s, fmt.Errorf("cannot find keys: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return s, errors.New("the file is not one of keys")
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("cannot read keys: %w", err)
	}
	if json.Unmarshal(raw, &s) != nil { // the error might quote a key
		return s, errors.New("the file is not JSON")
	}
	return s, nil
}

func write(path string, s stored) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode keys: %w", err)
	}
	return atomicfile.Write(path, append(raw, '\n'), 0o600)
}

// locked runs fn while no other process changes the keys.
func locked(stateDir string, fn func(path string) error) error {
	dir := filepath.Join(stateDir, dirName)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make directory: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open directory: %w", err)
	}
	defer d.Close() // and with it the lock
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock directory: %w", err)
	}
	return fn(filepath.Join(dir, fileName))
}

func keysFault(path string, err error) error {
	return &instance.Fault{
		Blame: instance.Host, Code: "signing.keys_unusable",
		Hint: "check that the file belongs to the user of sandboxd and has mode 0600; " +
			"moved away, it is made anew and cards are signed by a new key",
		Err: fmt.Errorf("cannot use signing keys %q: %w", path, err),
	}
}
