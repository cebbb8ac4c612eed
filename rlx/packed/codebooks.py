"""The values of the codes of packed formats: one of 16 numbers, or vectors of 8 (or 4) small numbers (GGUF's IQ types).

Each codebook of vectors is a subset of all vectors over a few digits, sorted as numbers whose first digit is the least
significant, so it is stored as a bit for each possible vector. The subsets are data of the file format (ggml,
`ggml-common.h`).
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

# name -> the values of a digit, the length of a vector
_DIGITS: dict[str, tuple[tuple[int, ...], int]] = {
    "iq2_xxs": ((8, 25, 43), 8),
    "iq2_xs": ((8, 25, 43), 8),
    "iq2_s": ((8, 25, 43), 8),
    "iq1": ((-1, 0, 1), 8),
    "iq3_xxs": ((4, 12, 20, 28, 36, 44, 52, 62), 4),
    "iq3_s": ((1, 3, 5, 7, 9, 11, 13, 15), 4),
}
_BITS = (
    "c-nPWO^h5z6@FDzp_+EEs+VrX;#AvShfX`PjBkWXwKXFd`_dCli@Q%Ipa^m1r`_y^ac_`f3j~5oyRnmTJ92^#$c!aN$|*z~K-_Y$z=sI"
    "04@kLyj6`@<)jd74IIWr8o_h7(``)YXy{gK?AeZAb1s04!0szwxfClphkV&2TKmw*S97i$7Zw5fXOi6J(2<$}nv04(kCty<IH0A>%_@a"
    "##KEzFwOruGsCA+V6;T}$m$l&n%A*-%C)8;4P&XQBg`gx#Jl<Iyq>vTGq`8Wg&HXjEs!)!>2A%k@4V=&k|{94*+(g0mWN?-^XBpHlL(k"
    "I1!<=A3m#Hz3j-2tN}YZlpR4wG!atk=c%N$oV!iS#hdg7k+dgJ;IR7Q^AkWV2ferdNt91C};=2-14AIVT%ot$P^4BeGA!I&SE5sGq5|@"
    "yO4St&kkf<}==(`LNHQmgo62pQPc0%<?>&q!QUWn_{gnAOtca3Jrr$ghXb{CQ)+7zMT7kD~OKc(ja8S5oVT8QA_s*QItXE_vthSCpKp~"
    "?c=g*;$At2uBQAA@VZ0o3<Arf@!C}#aTCX>WnN!2PDuLP$&^?xvbSmLfY{`ZUC1`BE@T*Ecq!=(Vxnw45fr%v*CtU~4n;#q=QXwd2i|n"
    ")wIMU$o4f{X(<@DSQa2#i8VbW~Xx;Hc>J5_UE{D><$~GD0NJI1*7hGA(!@L8sk!aSpBOP)QGGjLjNmsjIqcB-cgPAQFy~a;H6g$o~$u^"
    "z!Fk>ZSE*r#^yWFHV8X22rAlE?#hbx3_c9x<4BDdIDTe7*-LGOjZW_Q_4rg1*$mY_q;hrbBd6-^#;KQ|oD10Dv*@hoTH`}l8y6T;bKn&"
    "o+bA47i>O#{o;FgIFA6U}orMv+<ZKytThV9`v`aySjJ9*v7UfGkK;#=%l@Fla>9V89(Eu^y+)h%jO&lCIZwOrK4|Y04S#VU}T8IxPuPQ"
    "?DGx7{!J`zu&s7vX3yN%}%%~8(X3H#}ti;ISj@o8@xl9hRlR)aOJsc2H-?l+9N~*GH@a`^a%}_?3V@&hE@yyFXX^>f}qn{8H5hJ4H-qY"
    "^9}}Gx3K)0gd7oSX*q6lC=Co|IYXxF2Bnp)szcgrxTYgFXykeV_6a|j`Pge<;=p4w@WW0ESK05nOCK^ZqHNWnjL4WFtNp}U=7uYiTy|P"
    "^QDonE9Alr6Ltn1KHqDz1XAJ)k^O3zX*>CK!uTvek);R49lCI+(+Fx`Jbgc<!5|A!U`H5h!re~*O^0me5s%pL>5*6%aL8-=*6Ctl@spi"
    "K(l=T;qdVat4-fWLR1YY|_SqqI?+w&p|P`x@WepQPi!I5B3ojaS033=&*T2(JVva@I#@#tM4;uz3Z+{S8ADDOAo56gx6=+2eqPW$o?o*"
    "XRimq+hK%a8tg^csyIQj2Qol~h1-{%_4UB6YHX%ldL##UdhzFf7$*vOU|Y1wFoaS?!i;hA<i>evt(<5%(5lQJ<qql+C4v#<vr(hwrDw1"
    "e*vVtl{hwo6(CURAnNrpAI;N96Ruosx|?&^}Fg$yjWgu7vF=@6Eu$KE|hSts1M#t+7HzJGCKJ9?fw1N7T56i_xG#ubBQ{)tK%vWt@`j!"
    "P1L;m>-rxH3KWvX98^*7H%+{(i}H-Od~k31-zQCdvJsURA2e|N41MnDjf02(Jh?davj;zV^7LOne*cpnE+2mTKVSXq{TH5YJ^p(Y$@am"
    "~-B#RP94YU7w%mFAlY(7*>C&eQ@5V{Mkj0~R3uu{mZ>c|)SKcgRXyA?F%TNjd->usAK7H#!RewZ_@BH%ApYJ}Fr99O>jKja&WZ;=RC_%"
    "2Pvi<rpI<s4kiepeU7wKi}9+<IrO1sLfirb%hTXvOsEevglqP1=!n1g7<tJQ1w+O`1Ym5)A*w#C?JjVcu)qh9w!n<NEzMr(Tk*5D&GFT"
    "G>91Z~q+@9k4BK^JAwda;P%)|^K5gCp@hQ7tdr#gK3O`%bG~i7)-WKK)7IQDnla7m-M`ZBMob&8@l-LaMropgihU*|QYA^+h<}QgIXHm"
    "&V;HbEI_n&Zi2i0DXB&b<j{K&yC{80r(dth8qiN5zcqSJodD}5e%6cgCwjt#WIRL9&w7>dq{bO)KDc?uF?b)vVgdRRdZ6d+@^pc3Lf{u"
    "!t{6Qb})}qdphAjsHxXzRj>A7M%7wPn_=!vjDJY1-kk7~7X&9!*ExLaPZ(bXdK<cer!5em+(Y}y`ZFEJGs*@jHCnD)6gZL^@XB@y4NfH"
    "Np`d^o7kurcLNJ^Zz4g<L6WPO9oeUHojx*GrsC2Jj&-SeI0K^(+Zrb|kygweAu59d6_bpauk#zm|q=q)wfp_K>s|~a}|C=z)iD(6v+L?"
    "Sv-Nw=G?Qb0yH$8ss`Quk22@(74HzWUs2O|;j^O6@4nQyTXH3zJTXg~|?p*hTMh`-J1Jb#<N0vTl&d^$o3q~wOrMvAa&qteHTBo4qE<2"
    ")<1kgwXE0ePZ~{B~aPgcmRJD?3{Z<=4QwOy{t5f(9PLJ*I@w4i4`~$_gTY>=`4dsi-Ex+zeZm{G1A!NY5Oc#)KhMV)#>$3UeUNqE)<BQ"
    "?3{ueT5~V@ehvRKD)}0d1TjP+XBhzZBs!CymMedxD%N)^rp4dVkYtK9<U8W;1Kf}T*VzeVV1^>P?4I<?;`6Y_UtXZ!@C=wHcnT&S<vtF"
    "i5WE~)XV)POftm?k+fSVvyco%-Tg!L3)tDZid(k1Cotq_jK8;1jD}htI|fH2`YST)FP(Iq1pfoYK<We"
)

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # twice the values of e2m1

# The values of the codes of bitsandbytes' two 4-bit types. nf4: each stands for a sixteenth of the normal distribution
# (Dettmers et al., "QLoRA", 2023, appendix E); fp4: floats with two exponent bits and one mantissa bit, divided by the
# largest, 12.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3)
TABLES = {"nf4": np.array(_NF4, np.float32), "fp4": np.array(_FP4, np.float32) / np.float32(12)}


@functools.cache
def codebook(name: str) -> npt.NDArray[np.int8]:
    """The vectors of a codebook: (codes, length), read-only. Raises: KeyError for an unknown name."""
    import base64  # few programs need a codebook, and every one imports this module
    import zlib

    raw = np.frombuffer(zlib.decompress(base64.b85decode(_BITS)), np.uint8)
    at = 0
    for known, (values, length) in _DIGITS.items():
        nbytes = -(-(len(values) ** length) // 8)
        if known == name:
            numbers = np.flatnonzero(np.unpackbits(raw[at : at + nbytes], bitorder="little"))
            digits = numbers[:, None] // len(values) ** np.arange(length) % len(values)
            result: npt.NDArray[np.int8] = np.array(values, np.int8)[digits]
            result.flags.writeable = False
            return result
        at += nbytes
    raise KeyError(name)
