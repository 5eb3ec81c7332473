package kvm

import "encoding/binary"

// romSize is the size of the firmware image, one real-mode segment.
const romSize = 64 << 10

// romBase is where the image lies below 1 MiB. The same bytes end at 4 GiB,
// where a processor begins.
const romBase = 0xF0000

// Ports the image speaks to: QEMU's isa-debugcon and isa-debug-exit.
const (
	portStage = 0xE9
	portExit  = 0xF4
	exitPass  = 0x31
	exitFail  = 0x32
)

// Stages in the order the image passes them. Each is one byte to portStage.
var stages = []struct {
	letter byte
	name   string
}{
	{'A', "real mode"},
	{'B', "protected mode"},
	{'C', "long mode"},
	{'D', "breakpoint exception and return"},
	{'E', "page fault, mapping and invlpg"},
	{'F', "local APIC timer interrupt"},
	{'G', "user mode"},
	{'H', "system call"},
	{'I', "50,000 rounds of a loop"},
}

// The image's use of RAM, all below 128 KiB.
const (
	pml4   = 0x10000
	pdpt   = 0x11000
	pdLow  = 0x12000 // 0 to 1 GiB
	pdHigh = 0x13000 // 3 to 4 GiB, for the local APIC
	ptTest = 0x14000 // for testVA
	gdtRAM = 0x15000 // the copy that ltr may mark busy
	tssRAM = 0x16000
	seenBP = 0x17000 // set by the breakpoint handler
	seenPF = 0x17001 // counts page faults
	seenIR = 0x17002 // set by the timer handler
	pageA  = 0x18000
	pageB  = 0x19000
	ramEnd = 0x1A000
	stackK = 0x1E000
	stackU = 0x1F000

	testVA = 0x400000 // not mapped until the page fault
	apic   = 0xFEE00000
)

// Selectors in the order that syscall and sysret want.
const (
	selCode32 = 0x08
	selData32 = 0x10
	selCode64 = 0x18
	selData64 = 0x20
	selUser32 = 0x28
	selUserDS = 0x30
	selUser64 = 0x38
	selTSS    = 0x40
)

// The descriptors have their accessed bits set, so that the processor has no
// reason to write to them while they lie in the image.
func gdt() []byte {
	d := []uint64{
		0,
		0x00CF9B000000FFFF, // code32
		0x00CF93000000FFFF, // data32
		0x00AF9B000000FFFF, // code64
		0x00CF93000000FFFF, // data64
		0x00CFFB000000FFFF, // user code32, unused
		0x00CFF3000000FFFF, // user data
		0x00AFFB000000FFFF, // user code64
		0x0000890000000067 | tssRAM<<16,
		0,
	}
	var b []byte
	for _, v := range d {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// vectors of the handlers below; every other vector ends the test.
const (
	vecBreakpoint = 3
	vecPageFault  = 14
	vecTimer      = 0x30
	vecSpurious   = 0x3F
	vecCount      = 0x40
)

// buildROM assembles the image.
func buildROM() []byte {
	a := newAsm()
	a.real()
	a.protected()
	a.long()
	a.faults()
	a.timer()
	a.user()
	a.handlers()
	a.tables()
	rom := make([]byte, romSize)
	copy(rom, a.link())
	// The reset vector: jmp 0xF000:entry, out of the mirror below 4 GiB.
	copy(rom[0xFFF0:], []byte{0xEA, 0x00, 0x00, 0x00, 0xF0})
	return rom
}

// stage writes a letter to portStage. The same bytes in all modes.
func (a *asm) stage(letter byte) {
	a.b(0xB0, letter)    // mov al, letter
	a.b(0xE6, portStage) // out 0xe9, al
}

func (a *asm) real() {
	a.b(0xFA) // cli
	a.b(0xFC) // cld
	a.stage('A')
	a.b(0x2E, 0x66, 0x0F, 0x01, 0x16).abs16("gdtr") // lgdtl cs:[gdtr]
	a.b(0x0F, 0x20, 0xC0)                           // mov eax, cr0
	a.b(0x0C, 0x01)                                 // or al, 1 (PE)
	a.b(0x0F, 0x22, 0xC0)                           // mov cr0, eax
	a.b(0x66, 0xEA).abs32("protected").w(selCode32) // ljmpl code32:protected
}

func (a *asm) protected() {
	a.label("protected")
	a.b(0x66, 0xB8).w(selData32) // mov ax, data32
	a.b(0x8E, 0xD8)              // mov ds, ax
	a.b(0x8E, 0xC0)              // mov es, ax
	a.b(0x8E, 0xD0)              // mov ss, ax
	a.b(0xBC).d(stackK)          // mov esp, stackK
	a.stage('B')
	a.b(0xBF).d(pml4)                // mov edi, pml4
	a.b(0x31, 0xC0)                  // xor eax, eax
	a.b(0xB9).d((ramEnd - pml4) / 4) // mov ecx, count
	a.b(0xF3, 0xAB)                  // rep stosd
	a.b(0xBE).abs32("gdt")           // mov esi, gdt
	a.b(0xBF).d(gdtRAM)              // mov edi, gdtRAM
	a.b(0xB9).d(uint32(len(gdt())) / 4)
	a.b(0xF3, 0xA5)                                                // rep movsd
	store := func(addr, v uint32) { a.b(0xC7, 0x05).d(addr).d(v) } // mov dword [addr], v
	store(pml4, pdpt|7)
	store(pdpt, pdLow|7)
	store(pdpt+3*8, pdHigh|7)
	store(pdLow, 0x87)                               // 0 to 2 MiB, large, user
	store(pdLow+testVA>>21*8, ptTest|7)              // 4 to 6 MiB: an empty table
	store(pdHigh+(apic-0xC0000000)>>21*8, apic|0x93) // large, not cached
	store(tssRAM+4, stackK)                          // RSP0
	store(tssRAM+0x64, 0x68<<16)                     // no I/O bitmap
	a.b(0x0F, 0x20, 0xE0)                            // mov eax, cr4
	a.b(0x0C, 0x20)                                  // or al, PAE
	a.b(0x0F, 0x22, 0xE0)                            // mov cr4, eax
	a.b(0xB8).d(pml4)                                // mov eax, pml4
	a.b(0x0F, 0x22, 0xD8)                            // mov cr3, eax
	a.b(0xB9).d(0xC0000080)                          // mov ecx, EFER
	a.b(0x0F, 0x32)                                  // rdmsr
	a.b(0x0D).d(0x101)                               // or eax, LME|SCE
	a.b(0x0F, 0x30)                                  // wrmsr
	a.b(0x0F, 0x20, 0xC0)                            // mov eax, cr0
	a.b(0x25).d(0x9FFFFFFF)                          // and eax, ~(CD|NW): caches on
	a.b(0x0D).d(0x80000000)                          // or eax, PG
	a.b(0x0F, 0x22, 0xC0)                            // mov cr0, eax
	a.b(0xEA).abs32("long").w(selCode64)             // ljmp code64:long
}

func (a *asm) long() {
	a.label("long")
	a.stage('C')
	a.b(0x31, 0xC0)                             // xor eax, eax
	a.b(0x8E, 0xD8)                             // mov ds, eax
	a.b(0x8E, 0xC0)                             // mov es, eax
	a.b(0x66, 0xB8).w(selData64)                // mov ax, data64
	a.b(0x8E, 0xD0)                             // mov ss, ax
	a.b(0x48, 0xC7, 0xC4).d(stackK)             // mov rsp, stackK
	a.b(0x0F, 0x01, 0x14, 0x25).abs32("gdtr64") // lgdt [gdtr64]
	a.b(0x0F, 0x01, 0x1C, 0x25).abs32("idtr")   // lidt [idtr]
	a.b(0x66, 0xB8).w(selTSS)                   // mov ax, tss
	a.b(0x0F, 0x00, 0xD8)                       // ltr ax
}

// In 64-bit code: ways to name a fixed address below 2 GiB.
func (a *asm) storeByte(addr uint32, v byte) { a.b(0xC6, 0x04, 0x25).d(addr).b(v) }             // mov byte [addr], v
func (a *asm) storeDword(addr, v uint32)     { a.b(0xC7, 0x04, 0x25).d(addr).d(v) }             // mov dword [addr], v
func (a *asm) wantByte(addr uint32, v byte)  { a.b(0x80, 0x3C, 0x25).d(addr).b(v); a.failNE() } // cmp byte [addr], v
func (a *asm) wantDword(addr, v uint32)      { a.b(0x81, 0x3C, 0x25).d(addr).d(v); a.failNE() } // cmp dword [addr], v
func (a *asm) invlpg(addr uint32)            { a.b(0x0F, 0x01, 0x3C, 0x25).d(addr) }            // invlpg [addr]
func (a *asm) failNE()                       { a.b(0x0F, 0x85).rel32("fail") }                  // jne fail
func (a *asm) apicWrite(reg, v uint32)       { a.b(0xC7, 0x83).d(reg).d(v) }                    // mov dword [rbx+reg], v
func (a *asm) iretq()                        { a.b(0x48, 0xCF) }

func (a *asm) faults() {
	a.b(0xCC) // int3
	a.wantByte(seenBP, 1)
	a.stage('D')

	a.storeDword(testVA, 0x12345678) // faults; the handler maps pageA
	a.wantDword(pageA, 0x12345678)
	a.wantByte(seenPF, 1)
	a.storeDword(pageB, 0x07654321)
	a.storeDword(ptTest, pageB|7)
	a.invlpg(testVA)
	a.wantDword(testVA, 0x07654321)
	a.stage('E')
}

func (a *asm) timer() {
	a.b(0xB0, 0xFF)   // mov al, 0xff
	a.b(0xE6, 0x21)   // out 0x21, al: mask the old interrupt controllers
	a.b(0xE6, 0xA1)   // out 0xa1, al
	a.b(0xBB).d(apic) // mov ebx, apic
	a.apicWrite(0xF0, 0x100|vecSpurious)
	a.apicWrite(0x3E0, 0xB) // divide by 1
	a.apicWrite(0x320, vecTimer)
	a.apicWrite(0x380, 100_000)
	a.label("wait")
	a.b(0xFA)                            // cli
	a.b(0x80, 0x3C, 0x25).d(seenIR).b(0) // cmp byte [seenIR], 0
	a.b(0x75).rel8("rang")               // jne rang
	a.b(0xFB, 0xF4)                      // sti; hlt (nothing comes between)
	a.b(0xEB).rel8("wait")               // jmp wait
	a.label("rang")
	a.stage('F')
}

func (a *asm) user() {
	wrmsr := func() { a.b(0x0F, 0x30) }
	a.b(0xB9).d(0xC0000081)                // mov ecx, STAR
	a.b(0x31, 0xC0)                        // xor eax, eax
	a.b(0xBA).d(selUser32<<16 | selCode64) // mov edx, selectors
	wrmsr()
	a.b(0xB9).d(0xC0000082)    // mov ecx, LSTAR
	a.b(0xB8).abs32("syscall") // mov eax, syscall
	a.b(0x31, 0xD2)            // xor edx, edx
	wrmsr()
	a.b(0xB9).d(0xC0000084) // mov ecx, SFMASK
	a.b(0xB8).d(0x200)      // mov eax, IF
	wrmsr()
	a.b(0x6A, selUserDS|3)  // push ss
	a.b(0x68).d(stackU)     // push rsp
	a.b(0x68).d(0x3002)     // push rflags, with IOPL 3 for the ports
	a.b(0x6A, selUser64|3)  // push cs
	a.b(0x68).abs32("user") // push rip
	a.iretq()

	a.label("user")
	a.b(0x8C, 0xC8) // mov eax, cs
	a.b(0x24, 0x03) // and al, 3
	a.b(0x3C, 0x03) // cmp al, 3
	a.failNE()
	a.stage('G')
	a.b(0x0F, 0x05) // syscall

	a.label("syscall")
	a.b(0x8C, 0xC8) // mov eax, cs
	a.b(0xA8, 0x03) // test al, 3
	a.failNE()
	a.stage('H')
	a.b(0xB9).d(50_000) // mov ecx, 50000
	a.label("loop")
	a.b(0xFF, 0xC9)        // dec ecx
	a.b(0x75).rel8("loop") // jnz loop
	a.stage('I')
	a.b(0xB0, exitPass) // mov al, pass
	a.b(0xE6, portExit) // out 0xf4, al
	a.halt()
}

func (a *asm) halt() {
	a.b(0xFA, 0xF4) // cli; hlt
	a.b(0xEB, 0xFC) // jmp to the cli
}

func (a *asm) handlers() {
	a.label("fail")
	a.stage('!')
	a.b(0xB0, exitFail) // mov al, fail
	a.b(0xE6, portExit) // out 0xf4, al
	a.halt()

	a.label("breakpoint")
	a.storeByte(seenBP, 1)
	a.iretq()

	a.label("pagefault")
	a.b(0xFE, 0x04, 0x25).d(seenPF) // inc byte [seenPF]
	a.b(0x0F, 0x20, 0xD0)           // mov rax, cr2
	a.b(0x48, 0x3D).d(testVA)       // cmp rax, testVA
	a.failNE()
	a.storeDword(ptTest, pageA|7)
	a.invlpg(testVA)
	a.b(0x48, 0x83, 0xC4, 0x08) // add rsp, 8: the error code
	a.iretq()

	a.label("timer")
	a.storeByte(seenIR, 1)
	a.apicWrite(0xB0, 0) // end of interrupt
	a.label("spurious")
	a.iretq()
}

func (a *asm) tables() {
	a.align(16)
	a.label("gdt")
	a.b(gdt()...)
	a.label("gdtr")
	a.w(uint16(len(gdt())) - 1).abs32("gdt")
	a.label("gdtr64")
	a.w(uint16(len(gdt())) - 1).d(gdtRAM).d(0)
	a.align(16)
	a.label("idt")
	handler := map[int]string{
		vecBreakpoint: "breakpoint", vecPageFault: "pagefault", vecTimer: "timer", vecSpurious: "spurious",
	}
	for v := range vecCount {
		name, ok := handler[v]
		if !ok {
			name = "fail"
		}
		a.gate(name)
	}
	a.label("idtr")
	a.w(vecCount*16 - 1).abs32("idt").d(0)
}
